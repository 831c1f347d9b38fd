"""What the shop knows and reconciling needs: what is on sale, and which requests are orders."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from django.conf import settings
from django.db import Error
from django.db.models import Q
from django.utils import timezone
from redis import RedisError

from inventory import reconcile as inventory
from inventory.reconcile import Repair
from shop import conservation
from shop.models import SaleItem
from shop.orders.queued import SHIFT, save_queued
from shop.orders.saving import reject, saved, taken

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Audited:
    """What was repaired, and the skus for which the tables broke the conservation law before and after."""

    before: list[str]
    repairs: list[Repair]
    after: list[str]


def reconcile(*, grace: float | None = None) -> list[Repair]:
    """Save what is queued, and put right what processes that died have left between Redis and Postgres.

    Args:
        grace: seconds after which a reservation that became no order is nobody's; None: `RECONCILE_GRACE`.

    Raises:
        RedisError, django.db.Error: a server did not answer. What was repaired until then stays so.
    """
    try:
        save_queued(shift=SHIFT)
    except (Error, RedisError):
        # The units of processes that died are others' too: they come back all the same, if Postgres lets them. And what
        # Redis refuses may be mended below.
        logger.exception("What is queued cannot be saved now, and stays queued.")
    allowed = settings.RECONCILE_GRACE if grace is None else grace
    return inventory.reconcile(sellers, saved, reject, taken, grace=allowed)


def reconcile_audited(*, grace: float | None = None) -> Audited:
    """Reconcile between two audits, and say so in the log where the law is broken. See `reconcile`."""
    before = broken()
    repairs = reconcile(grace=grace)
    audited = Audited(before, repairs, broken())
    if audited.before or audited.after:
        logger.error("The conservation law is broken for %s, and after reconciling for %s.", before, audited.after)
    return audited


def broken() -> list[str]:
    """The skus for which the tables break the law."""
    return [figures.sku for figures in conservation.figures() if not figures.conserved]


def sellers() -> dict[str, str]:
    """The strategy of each sku that is in a sale which is open or preheated, and not over."""
    now = timezone.now()
    preheated = Q(sale__preheated_at__isnull=False, sale__unloaded_at=None)
    selling = Q(sale__closes_at__gt=now) & (Q(sale__opens_at__lte=now) | preheated)
    # The sale that opens first comes last, and wins: the other one is still to come.
    items = SaleItem.objects.filter(selling).order_by("-sale__opens_at", "-sale")
    return dict(items.values_list("product__sku", "sale__strategy"))
