"""What Celery runs. A task is a wake-up: the truth is in the tables, so one lost or run twice does no harm."""

import logging
from typing import Any

from celery import shared_task
from celery.signals import worker_ready
from django.db import Error
from kombu.exceptions import KombuError, OperationalError
from redis import RedisError

from shop import reconcile as reconciling
from shop.orders.expiry import expire_unpaid
from shop.orders.queued import SHIFT, save_queued
from shop.sales import lifecycle

logger = logging.getLogger(__name__)


@shared_task
def expire_unpaid_orders() -> int:
    """Return the units of orders that nobody paid for in time."""
    return expire_unpaid()


@shared_task
def advance_sales() -> None:
    """Preheat the sales that open soon, and clear away those that are over."""
    lifecycle.tend()


@shared_task(autoretry_for=(Error, RedisError), default_retry_delay=1, max_retries=8)
def save_queued_orders() -> int:
    """Save the orders that are queued. Beat starts it too, for the orders whose wake-up was lost."""
    return save_queued(shift=SHIFT)


@shared_task
def reconcile() -> int:
    """Put right what processes that died have left between Redis and Postgres, between two audits.

    Each repair is logged, and so is what the audits find.
    """
    return len(reconciling.reconcile_audited().repairs)


@worker_ready.connect
def look_for_queued_orders(**_: Any) -> None:
    """Save what a worker that died has left, without waiting for beat."""
    save_queued_orders.delay()


def wake_worker(**_: Any) -> None:
    """Tell Celery that orders are queued. If it does not listen, or has no time, beat's next round sees them."""
    try:
        save_queued_orders.apply_async(retry=False, expires=10)
    except (KombuError, OperationalError, OSError) as error:
        logger.warning("No worker was told that orders are queued: %s", error)
