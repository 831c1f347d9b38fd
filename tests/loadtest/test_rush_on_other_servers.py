"""The bursts of `test_rush`, sold by the strategies whose locks are on servers that a shop need not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.loadtest.conftest import Manage, rush_of_all
from tests.lock_servers import SERVERS

pytestmark = pytest.mark.slow

ALL = [argument for strategy in SERVERS for argument in ("--strategy", strategy)]


@pytest.fixture(scope="module")
def there(manage: Manage) -> Iterator[Manage]:
    """Commands of a shop that knows all of these servers."""
    with ExitStack() as running:
        yield partial(manage, **{setting: running.enter_context(server()) for setting, server in SERVERS.values()})


@pytest.mark.parametrize(
    ("burst", "stock", "sold"),
    [
        pytest.param(["--stock", "100"], 100, 100, id="a hundred units"),
        pytest.param(["--stock", "1"], 1, 1, id="the last unit"),
        pytest.param(["--stock", "20", "--skus", "3", "--attempts", "300"], 60, 60, id="carts"),
    ],
)
def test_two_hundred_buyers_get_every_unit_once(there: Manage, burst: list[str], stock: int, sold: int) -> None:
    status, results = rush_of_all(there, *ALL, "--clients", "200", *burst)
    assert status == 0
    assert set(results) == set(SERVERS)
    for result in results.values():
        assert (result["stock"], result["sold"], result["on_hand"]) == (stock, sold, 0), result
        assert (result["errors"], result["missing"], result["conserved"], result["unserved"]) == (0, 0, True, 0), result
