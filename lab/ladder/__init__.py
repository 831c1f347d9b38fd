"""The rungs of the ladder. Each differs from the one before only in what it fixes."""
