"""Faults that may hit the clients of an experiment, their leases and their servers."""
