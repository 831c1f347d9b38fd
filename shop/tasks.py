"""What Celery runs. A task is a wake-up: the truth is in the tables, so one lost or run twice does no harm."""

from celery import shared_task

from shop import checkout, sales


@shared_task
def expire_unpaid_orders() -> int:
    """Return the units of orders that nobody paid for in time."""
    return checkout.expire_unpaid()


@shared_task
def tend_sales() -> None:
    """Preheat the sales that open soon, and clear away those that are over."""
    sales.tend()
