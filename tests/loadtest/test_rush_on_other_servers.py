"""The bursts of `test_rush` with strategies whose locks are on servers of their own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.loadtest.conftest import Manage, rush_all
from tests.lock_servers import SERVERS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=SERVERS)
def seller(manage: Manage, request: pytest.FixtureRequest) -> Iterator[tuple[str, Manage]]:
    """A strategy, and a `manage` whose environment names its server."""
    setting, server = SERVERS[request.param]
    with server() as address:
        yield request.param, partial(manage, **{setting: address})


@pytest.mark.parametrize(
    ("burst", "stock"),
    [
        pytest.param(["--stock", "100"], 100, id="a hundred units"),
        pytest.param(["--stock", "1"], 1, id="the last unit"),
        pytest.param(["--stock", "20", "--skus", "3", "--attempts", "300"], 60, id="carts"),
    ],
)
def test_every_unit_is_sold_once(seller: tuple[str, Manage], burst: list[str], stock: int) -> None:
    strategy, manage = seller
    status, results = rush_all(manage, "--strategy", strategy, "--clients", "200", *burst)
    result = results[strategy]
    assert status == 0, result
    assert (result["stock"], result["sold"], result["on_hand"]) == (stock, stock, 0), result
    assert (result["errors"], result["missing"], result["conserved"], result["unserved"]) == (0, 0, True, 0), result
