"""Faults that may hit the clients of an experiment and their servers."""
