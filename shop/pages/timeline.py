"""The timeline of an order for its customer: the events in the tables, with their times if they are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from django.utils.translation import gettext as _

from shop.models import Ending, Order, Payment, Refund
from shop.orders.lookup import LOST
from shop.orders.payments import BY_CUSTOMER
from shop.orders.receipts import Placed, Receipt
from shop.pages.reasons import in_words


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One event of the timeline.

    Args:
        what: the event in the reader's language.
        at: when it happened; None if the tables do not contain the time.
        detail: a text that explains the event, or empty.
        failed: whether the event is bad for the buyer.
    """

    what: str
    at: datetime | None = None
    detail: str = ""
    failed: bool = False


def timeline(placed: Placed, payments: Sequence[Payment], ending: Ending | None) -> list[TimelineEntry]:
    """Return the events of an order.

    Args:
        placed: the order.
        payments: all payments for the order, with their refunds, oldest first.
        ending: the record of when and by whom the order was ended; None if there is none.
    """
    order = placed.order
    paid = [event for each in payments for event in _of_payment(each, order)]
    return [*_before_payment(placed), *_in_order([*_ended(order, ending), *paid])]


def _before_payment(placed: Placed) -> Iterator[TimelineEntry]:
    order = placed.order
    names = {item.sku: item.name for item in order.items}
    yield TimelineEntry(_("Placed"), order.created_at)
    if order.reason == LOST:
        yield TimelineEntry(_("Lost"), detail=in_words(LOST, names), failed=True)
        return
    rejected = order.state == Order.State.REJECTED
    if placed.queued or rejected or order.payable_from is None or order.payable_from > order.created_at:
        yield TimelineEntry(_("Queued"))
    if not placed.queued and not rejected:
        yield TimelineEntry(_("Saved"), order.payable_from)
    if not order.total and order.state in {Order.State.PAID, Order.State.REFUNDED}:
        yield TimelineEntry(_("Paid"), order.payable_from, _("The order is free."))
        yield from _returned(order)


def _ended(order: Receipt, ending: Ending | None) -> Iterator[TimelineEntry]:
    """Yield the event that ended the order (cancelled, expired or rejected), even if the order was paid later.

    Args:
        ending: the record of the event; None if the order did not end, or if an earlier version of the shop ended it.
    """
    at = ending.at if ending else None
    match ending.state if ending else order.state:
        case Order.State.CANCELLED:
            what = _("Cancelled")
            if ending is not None:
                mine = ending.by_id == ending.order.customer_id
                what = _("Cancelled by you") if mine else _("Cancelled by the shop")
            yield TimelineEntry(what, at, failed=True)
        case Order.State.EXPIRED:
            yield TimelineEntry(_("Expired"), at, _("It was not paid in time."), failed=True)
        case Order.State.REJECTED if order.reason != LOST:
            names = {item.sku: item.name for item in order.items}
            yield TimelineEntry(_("Rejected"), at, in_words(order.reason, names), failed=True)


def _of_payment(payment: Payment, order: Receipt) -> Iterator[TimelineEntry]:
    note = in_words(payment.note, {item.sku: item.name for item in order.items})
    if payment.outcome == Payment.Outcome.PAID:
        amount = money(payment.amount, payment.currency)
        if payment.reference.startswith(BY_CUSTOMER):
            paid = _("%(amount)s, marked as paid by you; no money moved.")
        elif "/" in payment.reference:  # References of a provider contain no slash.
            paid = _("%(amount)s, recorded by the shop.")
        else:
            paid = _("%(amount)s, reference %(reference)s.")
        detail = paid % {"amount": amount, "reference": payment.reference}
        yield TimelineEntry(_("Paid"), payment.received_at, f"{detail} {note}".strip())
        yield from _returned(order)
    else:
        amount = money(payment.amount, payment.currency)
        what = _("A payment of %(amount)s arrived and is refunded to you") % {"amount": amount}
        yield TimelineEntry(what, payment.received_at, note, failed=True)
    for refund in payment.refunds.all():
        yield from _of_refund(refund, money(refund.amount, payment.currency))


def _of_refund(refund: Refund, amount: str) -> Iterator[TimelineEntry]:
    if refund.chargeback is not None:
        yield TimelineEntry(_("%(amount)s taken back by the payment provider") % {"amount": amount}, refund.sent_at)
        return
    yield TimelineEntry(_("%(amount)s to be refunded") % {"amount": amount}, refund.created_at)
    if refund.sent_at is not None:
        yield TimelineEntry(_("%(amount)s sent back to you") % {"amount": amount}, refund.sent_at)


def _returned(order: Receipt) -> Iterator[TimelineEntry]:
    if returned := [f"{item.returned} × {item.name}" for item in order.items if item.returned]:
        yield TimelineEntry(_("Units returned"), detail=", ".join(returned))


def _in_order(events: Sequence[TimelineEntry]) -> list[TimelineEntry]:
    """Sort events by time. An event without a time stays after its predecessor."""
    keyed, last = [], datetime.min.replace(tzinfo=UTC)
    for event in events:
        last = event.at or last
        keyed.append((last, event))
    return [event for _last, event in sorted(keyed, key=lambda pair: pair[0])]


def money(amount: Decimal, currency: str) -> str:
    """Format an amount of money."""
    return f"{amount:.2f} {currency}".strip()
