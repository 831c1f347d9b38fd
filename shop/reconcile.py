"""What the shop knows and reconciling needs: what is on sale, and which drafts are orders."""

from __future__ import annotations

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from inventory import reconcile as inventory
from inventory.reconcile import Repair
from shop import checkout
from shop.models import SaleItem
from shop.saving import saved


def reconcile(*, grace: float | None = None) -> list[Repair]:
    """Save what is queued, and put right what processes that died have left between Redis and Postgres.

    Args:
        grace: seconds after which a reservation that became no order is nobody's; None: `RECONCILE_GRACE`.

    Raises:
        RedisError, OperationalError: a server did not answer. What was repaired until then stays so.
    """
    checkout.save_queued()
    return inventory.reconcile(sellers(), saved, grace=settings.RECONCILE_GRACE if grace is None else grace)


def sellers() -> dict[str, str]:
    """The strategy of each sku that is in a sale which is open or preheated, and not over."""
    now = timezone.now()
    preheated = Q(sale__preheated_at__isnull=False, sale__unloaded_at=None)
    selling = Q(sale__closes_at__gt=now) & (Q(sale__opens_at__lte=now) | preheated)
    # The sale that opens first comes last, and wins: the other one is still to come.
    items = SaleItem.objects.filter(selling).order_by("-sale__opens_at")
    return dict(items.values_list("product__sku", "sale__strategy"))
