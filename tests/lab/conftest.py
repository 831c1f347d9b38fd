"""What the tests of the lab share with those of the shop."""

from tests.shop.conftest import buyer, visitor

__all__ = ["buyer", "visitor"]
