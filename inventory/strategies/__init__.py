"""The strategies: ways of taking stock for an order. Each file has one strategy. `registry.py` loads them by name."""
