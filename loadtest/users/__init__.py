"""The people of a load test."""

from loadtest.users.buyer import Buyer

__all__ = ["Buyer"]
