"""Stock counters in Redis: whole, one counter a sku, and segmented, several counters a sku."""
