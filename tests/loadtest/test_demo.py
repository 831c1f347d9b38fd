"""How often the demo repeats a burst, and what it leaves in the shop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from django.utils import timezone

from loadtest.demo import MAX_BURSTS, pay_orders, run_until_broken
from loadtest.preparation import prepare
from loadtest.rush import OnProgress, Rush
from shop import conservation
from shop.orders.expiry import expire_unpaid
from tests.factories import OnSale, new_customer, on_sale, orders_in
from tests.shop.conftest import buy, make_due, state


@dataclass(frozen=True, kw_only=True)
class ScriptedRush(Rush):
    """A burst with given verdicts."""

    verdicts: list[bool]

    def run(self, url: str, *, progress: OnProgress = lambda _: None) -> dict[str, Any]:
        return {"strategy": self.name, "conserved": self.verdicts.pop(0), "missing": 0, "unserved": 0}


@pytest.mark.parametrize(
    ("seller", "verdicts", "conserved", "bursts"),
    [
        pytest.param({"rung": "subtract-in-sql"}, [False, True], False, 1, id="flawed, breaks at once"),
        pytest.param({"rung": "subtract-in-sql"}, [True, True, False, True], False, 3, id="flawed, lucky twice"),
        pytest.param({"rung": "subtract-in-sql"}, [True] * 9, True, MAX_BURSTS, id="flawed, never breaks"),
        pytest.param({"strategy": "lua"}, [True, False], True, 1, id="sound"),
        pytest.param({"strategy": "lua"}, [False, True], False, 1, id="sound, breaks"),
    ],
)
def test_only_a_flawed_rung_gets_more_bursts(
    seller: dict[str, str], verdicts: list[bool], conserved: bool, bursts: int
) -> None:
    verdict = run_until_broken(ScriptedRush(**seller, verdicts=list(verdicts)), "", progress=lambda _: None)
    assert (verdict["conserved"], verdict["bursts"]) == (conserved, bursts)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize("secret", ["", "shared with the provider"])
def test_the_demo_leaves_a_shop_that_has_sold_something(settings: Any, secret: str) -> None:
    settings.PAYMENT_SECRET = secret
    earlier = buy(on_sale({"a": 5}), a=1).order.pk
    began = timezone.now()
    visitor = buy(on_sale({"b": 5}), b=1).order.pk
    burst = prepare(strategy="guarded-update", units=20, customers=[], limit=1)
    for _ in range(20):
        buy(OnSale(burst.sale, burst.products), new_customer(), **dict.fromkeys(burst.products, 1))

    assert pay_orders(began) == 18
    make_due()
    assert expire_unpaid() == 4

    assert (orders_in("paid"), state(earlier), state(visitor)) == (18, "expired", "expired")
    assert sum(row.sold for row in conservation.figures()) == 18
