"""The payment provider as the shop sees it, and a simulated one to try the shop with."""
