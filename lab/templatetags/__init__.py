"""Template filters of the lab."""
