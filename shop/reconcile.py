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
    return inventory.reconcile(on_sale(), saved, grace=settings.RECONCILE_GRACE if grace is None else grace)


def on_sale() -> set[str]:
    """The skus of sales that are open or preheated, and not over."""
    now = timezone.now()
    selling = Q(sale__closes_at__gt=now) & (Q(sale__opens_at__lte=now) | Q(sale__preheated_at__isnull=False))
    return set(SaleItem.objects.filter(selling).values_list("product__sku", flat=True))
