"""Stock counters in Redis: whole, one counter per sku, and segmented, several counters per sku."""
