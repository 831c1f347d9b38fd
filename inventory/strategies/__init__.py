"""The strategies: ways of taking stock for an order. `base.py` has the base class; `registry.py` loads them by name."""
