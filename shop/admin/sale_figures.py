"""Units sold, units left and revenue of the sales in a list, in a few statements for the whole page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.db.models import DecimalField, F, Q, Sum
from django.db.models.functions import Coalesce

from inventory.models import StockItem
from inventory.stock import all_on_hand
from shop.models import Order, OrderItem, Sale, SaleItem

UNITS = F("quantity") - F("returned")
PRICE = Sum(F("price") * UNITS, filter=Q(order__state=Order.State.PAID), output_field=DecimalField())


@dataclass(frozen=True, slots=True)
class SaleFigures:
    """Figures of a sale.

    Args:
        sold: units of pending and paid orders, without returned units.
        left: units on hand of the skus of the sale.
        revenue: total price of the units of paid orders, without returned units, in the currency of the sale.
    """

    sold: int = 0
    left: int = 0
    revenue: Decimal = Decimal()


def figures_of(sales: Sequence[Sale]) -> dict[int, SaleFigures]:
    """Return the figures of each sale, by its id."""
    standing = OrderItem.objects.filter(order__sale__in=sales, order__state__in=Order.STANDING).order_by()
    revenue = Coalesce(PRICE, Decimal(), output_field=DecimalField())
    grouped = standing.values("order__sale").annotate(units=Sum(UNITS), revenue=revenue)
    sold = {row["order__sale"]: (row["units"], row["revenue"]) for row in grouped}
    offered: defaultdict[int, list[str]] = defaultdict(list)
    for sale, sku in SaleItem.objects.filter(sale__in=sales).values_list("sale", "product__sku"):
        offered[sale].append(sku)
    skus = {sku for each in offered.values() for sku in each}
    left = dict(StockItem.objects.filter(sku__in=skus).values_list("sku", all_on_hand()))
    return {
        sale.pk: SaleFigures(
            sold.get(sale.pk, (0, Decimal()))[0],
            sum(left.get(sku, 0) for sku in offered[sale.pk]),
            sold.get(sale.pk, (0, Decimal()))[1],
        )
        for sale in sales
    }
