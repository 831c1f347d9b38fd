"""Load tests: bursts of buyers over HTTP. Each burst ends with a verdict that is computed from the tables."""
