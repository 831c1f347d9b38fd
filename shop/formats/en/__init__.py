"""Formats of dates in English."""
