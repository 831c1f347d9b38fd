"""Stock counters in Redis."""
