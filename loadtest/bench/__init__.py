"""Benchmarks that compare strategies and locks within one run: `python -m loadtest.bench`."""
