"""Metrics for Prometheus, added up over all processes of the shop on this machine."""
