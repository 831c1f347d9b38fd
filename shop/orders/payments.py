"""Payments for orders. Reports of payments may come twice, late or out of order.

Each payment either pays its order, or becomes due for refund. An order is paid only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now
from psycopg.errors import UniqueViolation

from inventory.errors import OverLimit, SoldOut
from shop.models import Order, Payment, Refund, UnmatchedReport
from shop.orders import states, unmatched
from shop.orders.errors import shortage_for_customer
from shop.orders.lookup import why_never_saved
from shop.orders.saving import retake_units

REFERENCES = ("shop_payment_reference", "shop_refund_chargeback")
"""Prefixes of the names of the constraints that make references unique."""

BY_CUSTOMER = "customer/"
"""Prefix of the references of payments that a customer reports. References of a provider contain no slash."""


class PaymentError(Exception):
    """The payment does not fit its order. Nothing was booked; see `shop.orders.unmatched`."""


class UnknownOrder(PaymentError):
    """There is no such order, or the order is still queued. The provider should report the payment again later."""


class NeverSaved(PaymentError):
    """The order has no row and will never get one, for example because it is lost. An operator settles the payment.

    The provider need not repeat the report.
    """


class UnknownPayment(PaymentError):
    """There is no such payment. The provider should report the chargeback again later."""


class ReferenceReused(PaymentError):
    """The reference belongs to another payment or chargeback."""


class WrongAmount(PaymentError):
    """The amount of a payment or of a chargeback is wrong.

    A payment must be the total of its order. A chargeback must be the part of its payment that the shop still has.
    """

    def __init__(self, *, expected: Decimal, received: Decimal, what: str = "The order costs") -> None:
        super().__init__(f"{what} {expected:.2f}, not {received:.2f}.")
        self.expected = expected
        self.received = received


class WrongCurrency(PaymentError):
    """The currency of the report is not that of the order or payment."""

    def __init__(self, *, expected: str, received: str) -> None:
        super().__init__(f"The currency is {expected}, not {received}.")
        self.expected = expected
        self.received = received


@dataclass(frozen=True, slots=True)
class ReceivedPayment:
    """A recorded payment.

    Args:
        replayed: whether an earlier call has already recorded the payment. The result is the same.
    """

    payment: Payment
    replayed: bool


def receive_payment(
    reference: str, *, order: UUID, amount: Decimal, currency: str | None = None, report: str | None = None
) -> ReceivedPayment:
    """Record a payment that the provider reports. Mark the order as paid, or the payment as due for refund.

    Args:
        reference: the provider's reference. Repeated calls with the same reference return the same payment.
        currency: code of ISO 4217; None means the currency of the shop, `CURRENCY`.
        report: the body of the provider's report. If an earlier delivery could not be booked, its record is closed.

    Raises:
        PaymentError: the payment is refused. Nothing was booked.
    """
    currency = settings.CURRENCY if currency is None else currency
    with transaction.atomic(durable=True):
        found = _locked(order)
        before = Payment.objects.filter(reference=reference).first()
        if before is not None:
            if (before.order_id, before.amount, before.currency) != (order, amount, currency):
                raise ReferenceReused(f"The reference {reference} belongs to another payment.")
            # Close the record of the report here, too: a refused delivery may write its record only after a later
            # delivery was booked.
            if report is not None:
                unmatched.close(report)
            return ReceivedPayment(before, replayed=True)
        if currency != found.currency:
            raise WrongCurrency(expected=found.currency, received=currency)
        if amount != found.total:
            raise WrongAmount(expected=found.total, received=amount)
        settled = None if report is None else unmatched.close(report)
        payment = record_payment(found, reference=reference, amount=amount, settled=settled)
        return ReceivedPayment(payment, replayed=False)


def _locked(order: UUID) -> Order:
    """Lock an order, and return it. See `states.locked`.

    Raises:
        NeverSaved, UnknownOrder: the order has no row.
    """
    try:
        return states.locked(order)
    except Order.DoesNotExist as error:
        reason = why_never_saved(order)
        # Look for the row again: a worker may have saved the order since the first read.
        if reason and not Order.objects.filter(pk=order).exists():
            raise NeverSaved(reason) from error
        raise UnknownOrder(f"There is no order {order}, or it is still queued.") from error


def record_payment(order: Order, *, reference: str, amount: Decimal, settled: UnmatchedReport | None = None) -> Payment:
    """Record a payment of the whole order in the open transaction, and mark the order as paid if possible.

    If the order was cancelled or has expired, its units are taken again. A refund is due if they were sold meanwhile,
    if the customer has reached the limit with other orders, or if the order is already paid, refunded or rejected.

    Args:
        order: as `states.locked` returns it.
        settled: the stored report of this payment, if an operator has settled that report; None otherwise. A settled
            payment does not pay the order: it is recorded as refunded.
    """
    note, outcome = "", Payment.Outcome.REFUND_DUE
    match order.state:
        case _ if settled is not None:
            note = "An operator settled the report before it could be booked."
        case Order.State.PENDING:
            outcome = Payment.Outcome.PAID
        case Order.State.PAID if not order.total and not order.payments.exists():
            note, outcome = "The order is free.", Payment.Outcome.PAID
        case Order.State.PAID:
            note = "The order is already paid."
        case Order.State.CANCELLED | Order.State.EXPIRED:
            try:
                with transaction.atomic():
                    retake_units(order)
            except (SoldOut, OverLimit) as refused:
                why: Exception = refused
                if isinstance(refused, SoldOut):
                    why = shortage_for_customer(refused, order.sale.stock_shown)  # The customer reads the note.
                note = f"The order is {order.state}. {why}"
            else:
                note, outcome = f"The order was {order.state}. Its units were taken again.", Payment.Outcome.PAID
        case _:
            note = f"The order is {order.state}."
    if outcome == Payment.Outcome.REFUND_DUE and not amount:
        note += " There is nothing to refund."
    if outcome == Payment.Outcome.PAID:
        states.change(order, Order.State.PAID)
    with new_reference(reference, "payment"):
        payment = Payment.objects.create(
            order=order, reference=reference, amount=amount, currency=order.currency, outcome=outcome, note=note[:200]
        )
    if outcome == Payment.Outcome.REFUND_DUE and amount:
        payment.refunds.create(
            amount=amount,
            note=payment.note,
            sent_at=settled.settled_at if settled else None,
            sent_by=settled.settled_by if settled else None,
        )
    return payment


@contextmanager
def new_reference(reference: str, kind: str) -> Iterator[None]:
    """Context manager for writing a row with a new reference. It translates the violation of the unique constraint.

    Two concurrent reports with the same reference may name different orders, and then lock different rows. So only the
    unique constraint can refuse the second report.

    Raises:
        ReferenceReused: a concurrent report has used the reference. The caller rolls back.
    """
    try:
        yield
    except IntegrityError as error:
        cause = error.__cause__
        if not isinstance(cause, UniqueViolation) or not (cause.diag.constraint_name or "").startswith(REFERENCES):
            raise
        raise ReferenceReused(f"The reference {reference} belongs to another {kind}.") from error


def refunds_due(payments: QuerySet[Payment]) -> QuerySet[Payment]:
    """Return the payments that have a refund which is due."""
    return payments.filter(Exists(Refund.objects.filter(payment=OuterRef("pk"), sent_at=None)))


def mark_refunded(refund: int, *, by: int) -> bool:
    """Record that a refund was sent, when and by whom.

    Args:
        by: user id of the operator who sent the money.

    Returns:
        False if the refund is not due: it was already marked as sent, or a chargeback has replaced it.
    """
    due = Refund.objects.filter(pk=refund, sent_at=None)
    return bool(due.update(sent_at=Now(), sent_by=by))
