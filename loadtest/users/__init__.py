"""The simulated users of a load test."""

from loadtest.users.buyer import Buyer

__all__ = ["Buyer"]
