"""What the tests of the lab share with those of the shop."""

from tests.locking.conftest import _without_a_watchdog
from tests.shop.conftest import buyer, visitor

__all__ = ["_without_a_watchdog", "buyer", "visitor"]
