"""The interface to the payment provider, a protocol that the shop defines, and a simulator to try the shop with."""
