"""Metrics for Prometheus: what the processes of the shop on this machine do, counted together."""
