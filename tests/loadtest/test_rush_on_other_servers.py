"""The bursts of `test_rush`, sold by the strategies whose locks are on servers that a shop need not have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.loadtest.conftest import Manage, rush_of_all
from tests.lock_servers import SERVERS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=SERVERS)
def there(manage: Manage, request: pytest.FixtureRequest) -> Iterator[tuple[str, Manage]]:
    """A strategy, and commands of a shop that knows its server."""
    setting, server = SERVERS[request.param]
    with server() as where:
        yield request.param, partial(manage, **{setting: where})


@pytest.mark.parametrize(
    ("burst", "stock"),
    [
        pytest.param(["--stock", "100"], 100, id="a hundred units"),
        pytest.param(["--stock", "1"], 1, id="the last unit"),
        pytest.param(["--stock", "20", "--skus", "3", "--attempts", "300"], 60, id="carts"),
    ],
)
def test_two_hundred_buyers_get_every_unit_once(there: tuple[str, Manage], burst: list[str], stock: int) -> None:
    strategy, manage = there
    status, results = rush_of_all(manage, "--strategy", strategy, "--clients", "200", *burst)
    result = results[strategy]
    assert status == 0, result
    assert (result["stock"], result["sold"], result["on_hand"]) == (stock, stock, 0), result
    assert (result["errors"], result["missing"], result["conserved"], result["unserved"]) == (0, 0, True, 0), result
