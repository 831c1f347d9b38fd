"""Celery tasks. Their work is read from the tables and the queue, so a lost or repeated task does no harm."""

import logging
from typing import Any

from celery import shared_task
from celery.signals import worker_ready
from django.db import Error
from kombu.exceptions import KombuError, OperationalError
from redis import RedisError

from shop.orders.expiry import expire_unpaid
from shop.orders.queued import SHIFT, save_queued
from shop.reconcile import reconcile_and_audit
from shop.sales import lifecycle

logger = logging.getLogger(__name__)


@shared_task
def expire_unpaid_orders() -> int:
    """Expire orders that were not paid in time, and return their units."""
    return expire_unpaid()


@shared_task
def advance_sales() -> None:
    """Preheat sales that open soon, and unload those that are over."""
    lifecycle.advance()


@shared_task(autoretry_for=(Error, RedisError), default_retry_delay=1, max_retries=8)
def save_queued_orders() -> int:
    """Save queued orders. Beat also starts this task, for orders whose wake-up was lost."""
    return save_queued(shift=SHIFT)


@shared_task
def reconcile() -> int:
    """Repair what crashed processes have left inconsistent between Redis and Postgres, and audit before and after.

    Repairs and the results of the audits are logged.
    """
    return len(reconcile_and_audit().repairs)


@worker_ready.connect
def look_for_queued_orders(**_: Any) -> None:
    """Save orders that a dead worker has left in the queue, without waiting for beat."""
    save_queued_orders.delay()


def wake_worker(**_: Any) -> None:
    """Tell Celery that orders are queued. If that fails, beat starts the task within seconds."""
    try:
        save_queued_orders.apply_async(retry=False, expires=10)
    except (KombuError, OperationalError, OSError) as error:
        logger.warning("No worker was woken for queued orders; beat will start one. %s", error)
