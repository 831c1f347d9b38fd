"""Formats of dates in the admin, by language."""
