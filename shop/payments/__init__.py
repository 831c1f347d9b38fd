"""The interface to the payment provider, and a simulated provider to try the shop with."""
