"""Stock counters in Redis: one per sku (`whole.py`), or one per segment of a sku (`segmented.py`)."""
