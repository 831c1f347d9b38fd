"""Load tests: bursts of real buyers over HTTP, each ending with a verdict counted from the tables."""
