"""`optimistic`: a concurrent write causes a bounded number of retries, and never a false "sold out"."""

from __future__ import annotations

from functools import partial

import pytest

from inventory import stock
from inventory.errors import StockConflict
from inventory.models import StockItem
from inventory.requests import Placement, RequestItem
from inventory.strategies import optimistic
from inventory.strategies.optimistic import Optimistic
from tests.factories import interleaved, new_request
from tests.inventory.conftest import Ledger

pytestmark = pytest.mark.django_db(transaction=True)

READ = "^SELECT .*inventory_stockitem"
deliver_five = partial(stock.deliver, "a", 5)


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_write_in_between_is_tried_again(ledger: Ledger, attempts: int) -> None:
    stock.deliver("a", 1)
    with interleaved(deliver_five, after=READ):
        if attempts == 1:
            with pytest.raises(StockConflict, match="each of 1 attempts"):
                Optimistic(attempts=1).place(new_request(("a", 1)), ledger.save)
        else:
            assert Optimistic(attempts=2).place(new_request(("a", 1)), ledger.save) is Placement.COMMITTED
    assert StockItem.objects.get(sku="a").version == attempts
    ledger.assert_law(a=(7 - attempts, attempts - 1))


def test_without_the_comparison_an_update_is_lost(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_without_comparing(item: RequestItem) -> None:
        row = StockItem.objects.get(sku=item.sku)
        StockItem.objects.filter(sku=item.sku).update(on_hand=row.on_hand - item.quantity, version=row.version + 1)

    monkeypatch.setattr(optimistic, "compare_and_set", set_without_comparing)
    stock.deliver("a", 1)
    with interleaved(deliver_five, after=READ):
        Optimistic(attempts=1).place(new_request(("a", 1)), ledger.save)
    figures = ledger.figures()["a"]
    assert (figures.received, figures.on_hand, figures.sold, figures.drift) == (6, 0, 1, 5)


def test_a_retry_takes_the_first_item_once(ledger: Ledger) -> None:
    stock.deliver("a", 2)
    stock.deliver("b", 2)
    with interleaved(lambda: stock.deliver("b", 1), after=f"{READ}.*'b'"):
        assert Optimistic(attempts=2).place(new_request(("a", 1), ("b", 1)), ledger.save) is Placement.COMMITTED
    assert StockItem.objects.get(sku="a").version == 1
    ledger.assert_law(a=(1, 1), b=(2, 1))
