"""The strategies: one way of taking stock in each file. `registry.py` loads them by name."""
