"""The interface to the payment provider, the shop's own protocol for one, and a simulator to try the shop with."""
