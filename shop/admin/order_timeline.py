"""The timeline of an order on its admin page: what happened, when, by whom and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.contenttypes.models import ContentType

from shop.admin.recording import RECORDED
from shop.models import Ending, Order, Payment, Refund
from shop.orders.payments import BY_CUSTOMER

PROVIDER = "payment provider"
CANCELLED = "Cancelled"
"""The event of an order that was cancelled. In the history of the admin, the operator's reason follows this word."""


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """One line of the timeline.

    Args:
        at: when it happened; None if the tables do not contain the time.
        who: a customer, an operator or a program.
        why: the reason, or empty.
    """

    what: str
    at: datetime | None = None
    who: str = ""
    why: str = ""


def timeline(order: Order, *, payments_too: bool) -> list[OrderEvent]:
    """Return the events of an order, oldest first, from the tables and the admin's history.

    Events without a time come last.

    Args:
        payments_too: whether the reader may see payments and refunds.
    """
    payments = order.payments.prefetch_related("refunds__created_by", "refunds__sent_by").order_by("received_at", "pk")
    ending = Ending.objects.filter(order=order).select_related("by").first()
    by_hand = list(_by_hand(order))
    cancelled = [event for event in by_hand if event.what == CANCELLED]
    if ending is not None:
        by_hand = [event for event in by_hand if event.what != CANCELLED]  # `_ended` yields it.
    of_payments: list[OrderEvent] = []
    if payments_too:
        recorded = _recorded_by_hand(order)
        of_payments = [event for payment in payments for event in _of_payment(order, payment, recorded)]
        by_hand = [event for event in by_hand if event.what != RECORDED]  # `_of_payment` yields it.
    events = [*_placed(order), *of_payments, *by_hand]
    if ending is not None or not cancelled:
        events += _ended(order, ending, cancelled[0].why if cancelled else "")
    return sorted(events, key=lambda event: event.at or datetime.max.replace(tzinfo=UTC))


def _placed(order: Order) -> Iterator[OrderEvent]:
    customer = str(order.customer)
    yield OrderEvent("Placed", order.created_at, customer)
    if order.state != Order.State.REJECTED and order.payable_from > order.created_at:
        yield OrderEvent("Saved from the queue", order.payable_from, "worker")
    if not order.total and order.state in (Order.State.PAID, Order.State.REFUNDED):
        yield OrderEvent("Paid", order.payable_from, customer, "The order is free.")


def _ended(order: Order, ending: Ending | None, why: str) -> Iterator[OrderEvent]:
    """Yield the event that ended the order (cancelled, expired or rejected), even if the order was paid later.

    Args:
        ending: the record of the event; None if the order did not end, or if an earlier version of the shop ended it.
        why: the reason of the operator who cancelled the order, or empty.
    """
    at, by = (ending.at, ending.by) if ending else (None, None)
    match ending.state if ending else order.state:
        case Order.State.CANCELLED:
            yield OrderEvent(CANCELLED, at, str(by or order.customer), why)
        case Order.State.EXPIRED:
            yield OrderEvent("Expired", at, "beat", "It was not paid in time; its units are for sale again.")
        case Order.State.REJECTED:
            yield OrderEvent("Rejected", at, "worker", order.reason)


def _of_payment(order: Order, payment: Payment, recorded: Mapping[str, LogEntry]) -> Iterator[OrderEvent]:
    by, why = str(order.customer) if payment.reference.startswith(BY_CUSTOMER) else PROVIDER, payment.note
    if (entry := recorded.get(str(payment.pk))) is not None:
        by, why = str(entry.user), f"{payment.note} {entry.change_message}".strip()
    amount = f"{payment.amount:.2f} {payment.currency}, reference {payment.reference}"
    paid = payment.outcome == Payment.Outcome.PAID
    yield OrderEvent(f"Paid {amount}" if paid else f"A payment to refund: {amount}", payment.received_at, by, why)
    for refund in payment.refunds.all():
        yield from _of_refund(refund, f"{refund.amount:.2f} {payment.currency}")


def _recorded_by_hand(order: Order) -> dict[str, LogEntry]:
    """Return the history entry of each payment that an operator has recorded by hand for the order, by payment id."""
    keys = [str(payment.pk) for payment in order.payments.all()]
    kind = ContentType.objects.get_for_model(Payment)
    entries = LogEntry.objects.filter(content_type=kind, object_id__in=keys, action_flag=ADDITION)
    return {str(entry.object_id): entry for entry in entries.select_related("user")}


def _of_refund(refund: Refund, amount: str) -> Iterator[OrderEvent]:
    if refund.chargeback is not None:
        yield OrderEvent(f"{amount} taken back, reference {refund.chargeback}", refund.sent_at, PROVIDER, refund.note)
        return
    yield OrderEvent(f"Refund of {amount} due", refund.created_at, str(refund.created_by or "the shop"), refund.note)
    if refund.sent_at is not None:
        yield OrderEvent(f"Refund of {amount} sent", refund.sent_at, str(refund.sent_by))


def _by_hand(order: Order) -> Iterator[OrderEvent]:
    """Yield the changes that operators have made to the order in the admin."""
    kind = ContentType.objects.get_for_model(Order)
    entries = LogEntry.objects.filter(content_type=kind, object_id=str(order.pk)).select_related("user")
    for entry in entries.order_by("action_time"):
        what, _, why = entry.get_change_message().partition(". ")
        yield OrderEvent(what.rstrip("."), entry.action_time, str(entry.user), why)
