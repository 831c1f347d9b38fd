"""Celery tasks. They find their work in Postgres and the order queue, so a lost or repeated task does no harm."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import shared_task
from celery.signals import after_setup_logger, after_setup_task_logger, beat_init, worker_init, worker_ready
from django.conf import settings
from django.db import Error
from kombu.exceptions import KombuError, OperationalError
from redis import RedisError

from inventory.outages import outages
from shop import limits
from shop.accounts.guests import forget_old_guests
from shop.accounts.sessions import SessionStore
from shop.look import look
from shop.orders.expiry import expire_unpaid
from shop.orders.queued import SHIFT, save_queued
from shop.orders.statistics import analyze_grown_tables
from shop.reconcile import reconcile_and_audit
from shop.runtime import measuring
from shop.runtime.logs import JsonFormatter, TextFormatter
from shop.sales import lifecycle

logger = logging.getLogger(__name__)

BROKER_ERRORS = (KombuError, OperationalError, OSError, RedisError)
"""Errors that can occur when a task is sent."""

_reconciling = threading.Lock()
"""The lock of the thread that reconciles, so that only one thread of this process does so at a time."""


@contextmanager
def outages_logged(work: str) -> Iterator[None]:
    """Context manager that logs when a task begins to fail because a server is away, and when it works again.

    Celery itself would log a traceback for every failed attempt. Beat starts the task again later.
    """
    try:
        yield
    except (Error, RedisError) as error:
        outages.failed(work, error)
    else:
        outages.worked(work)


@shared_task
def expire_unpaid_orders() -> int:
    """Expire orders that were not paid in time, and return their units."""
    with outages_logged("Expiring unpaid orders"):
        return expire_unpaid()
    return 0


@shared_task
def advance_sales() -> None:
    """Preheat sales that open soon, and unload sales that are over."""
    with outages_logged("Advancing sales"):
        lifecycle.advance()


@shared_task
def analyze_tables() -> None:
    """Analyse the tables of orders that have grown quickly, so that Postgres looks up keys in their indexes."""
    with outages_logged("Analysing tables"):
        analyze_grown_tables()


@shared_task
def forget_old_sessions() -> None:
    """Delete expired browser sessions. Then delete guests who have no order and no browser session."""
    with outages_logged("Deleting old sessions"):
        SessionStore.clear_expired()
        forget_old_guests()


@shared_task(bind=True, max_retries=8)
def save_queued_orders(self: Any) -> int:
    """Save queued orders. Queuing an order starts this task. Beat starts it, too, because that first start may fail."""
    try:
        with outages_logged("Saving queued orders"):
            return save_queued(shift=SHIFT)
        if self.request.retries < self.max_retries:
            self.retry(countdown=1)
    except BROKER_ERRORS:
        pass  # Redis, which is also the broker, is away. Beat starts the task again later.
    return 0


@shared_task
def reconcile() -> int:
    """Repair differences between Redis and Postgres that crashed processes have left, and check the conservation law.

    Repairs and broken skus are logged. Do nothing while another thread of this worker reconciles: otherwise,
    reconciliations that wait for a locked row could occupy all threads of the worker.
    """
    if not _reconciling.acquire(blocking=False):
        return 0
    try:
        with outages_logged("Reconciling"):
            done = reconcile_and_audit()
            measuring.reconciled(done)
            return len(done.repairs)
        return 0
    finally:
        _reconciling.release()


@worker_init.connect
@beat_init.connect
def refuse_wrong_settings(**_: Any) -> None:
    """Exit if the settings do not fit Postgres. The time limits are not checked: only the web server needs them."""
    if wrong := look(limits.POSTGRES_CONNECT, web=False).wrong:
        raise SystemExit(wrong)


@after_setup_logger.connect
@after_setup_task_logger.connect
def format_log(logger: logging.Logger, **_: Any) -> None:
    """Make Celery write its log in LOG_FORMAT. A log in text keeps Celery's format, and order and trace are added."""
    for handler in logger.handlers:
        if settings.LOG_FORMAT == "json":
            handler.setFormatter(JsonFormatter())
        elif not isinstance(handler.formatter, TextFormatter):
            handler.setFormatter(TextFormatter(handler.formatter))


@worker_init.connect
def measure_worker(**_: Any) -> None:
    """Start the metrics of this worker."""
    measuring.start("worker")


@beat_init.connect
def measure_beat(**_: Any) -> None:
    """Start the metrics of beat."""
    measuring.start("beat")


@worker_ready.connect
def look_for_queued_orders(**_: Any) -> None:
    """Start saving queued orders as soon as a worker is ready: a dead worker may have left orders queued."""
    save_queued_orders.delay()


def wake_worker(**_: Any) -> None:
    """Start the task that saves queued orders. If the broker fails, beat starts the task within seconds."""
    try:
        save_queued_orders.apply_async(retry=False, expires=60)
    except BROKER_ERRORS as error:
        logger.warning("No worker was woken for queued orders; beat will start one. %s", error)
