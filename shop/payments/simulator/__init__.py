"""A simulated payment provider: a separate process that reports what a buyer chooses. No money moves.

It shares only the signing secret with the shop, and never opens the shop's database.
"""
