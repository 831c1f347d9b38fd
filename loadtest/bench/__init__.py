"""Measurements, as ratios within one run: `python -m loadtest.bench`."""
