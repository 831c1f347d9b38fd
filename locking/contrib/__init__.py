"""Integrations of the locks with frameworks."""
