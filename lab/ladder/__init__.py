"""The rungs of the ladder. Each differs from the one before only by what it fixes."""
