"""The rungs of the ladder. Each differs from the one before by what it fixes, and by nothing else."""
