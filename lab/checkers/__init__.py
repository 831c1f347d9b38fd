"""Checkers: they decide whether the invariants of an experiment hold when its clients are done."""
