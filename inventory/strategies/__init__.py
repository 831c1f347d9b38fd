"""The strategies: ways of taking stock for an order, one in each file. `registry.py` loads them by name."""
