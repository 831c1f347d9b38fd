"""Load tests: bursts of simulated buyers over HTTP. Each burst ends with a verdict that is computed from the tables."""
