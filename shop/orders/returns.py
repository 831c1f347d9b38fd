"""Return paid orders: an operator takes units back, or the payment provider reports a chargeback.

Units and allowances come back exactly once, and a `Refund` records the money.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from shop.models import Order, Payment, Refund
from shop.orders import states, unmatched
from shop.orders.errors import NotReturnable
from shop.orders.payments import ReferenceReused, UnknownPayment, WrongAmount, WrongCurrency, new_reference
from shop.orders.saving import return_items


@dataclass(frozen=True, slots=True)
class ReceivedChargeback:
    """A recorded chargeback.

    Args:
        replayed: whether an earlier call has already recorded the chargeback. The result is the same.
    """

    refund: Refund
    replayed: bool


def return_order(
    order: UUID, *, by: int, returned: Mapping[str, int] | None = None, before: Mapping[str, int] | None = None
) -> Decimal:
    """Take back units of a paid order, and record a refund of their price as due.

    Args:
        by: user id of the operator.
        returned: units by sku that have come back in total, earlier returns included; None means all units of the
            order. Because these are totals, repeating the call changes nothing.
        before: units by sku that had come back when the operator opened the page. If more units have come back since,
            the call fails. None means not to check this.

    Returns:
        The amount of the refund that this call has made due.

    Raises:
        Order.DoesNotExist: there is no such order.
        NotReturnable: the order is neither paid nor refunded, has fewer units, or more units have come back since the
            page was opened.
    """
    with transaction.atomic(durable=True):
        mine = states.locked(order)
        if mine.state not in {Order.State.PAID, Order.State.REFUNDED}:
            raise NotReturnable(f"The order is {mine.state}.")
        for item in mine.items.all():
            sku = str(item.product_id)
            if before is not None and (since := item.returned - before.get(sku, 0)):
                raise NotReturnable(f"{since} × {sku} have come back since the page was opened. Count again.")
        amount = _take_back(mine, returned)
        if amount and (payment := mine.payments.filter(outcome=Payment.Outcome.PAID).first()) is not None:
            payment.refunds.create(amount=amount, note="Units were returned.", created_by_id=by)
    return amount


def receive_chargeback(
    reference: str, *, payment: str, amount: Decimal, currency: str | None = None, report: str | None = None
) -> ReceivedChargeback:
    """Record that the provider took back what the shop still had of a payment.

    If this payment has paid the order, put the remaining units of the order back on hand, and mark the order as
    refunded. The chargeback replaces those refunds of the payment that were due but not sent, because the customer has
    the money now.

    Args:
        reference: the provider's reference of the chargeback. Repeated calls return the same chargeback.
        payment: the provider's reference of the payment.
        currency, report: as in `payments.receive_payment`.

    Raises:
        PaymentError: the chargeback is refused. Nothing was booked.
    """
    currency = settings.CURRENCY if currency is None else currency
    with transaction.atomic(durable=True):
        paid = Payment.objects.filter(reference=payment).first()
        if paid is None:
            raise UnknownPayment(f"There is no payment {payment}.")
        order = states.locked(paid.order_id)
        before = Refund.objects.filter(chargeback=reference).first()
        if before is not None:
            if (before.payment_id, before.amount, paid.currency) != (paid.pk, amount, currency):
                raise ReferenceReused(f"The reference {reference} belongs to another chargeback.")
            if report is not None:
                unmatched.close(report)
            return ReceivedChargeback(before, replayed=True)
        if currency != paid.currency:
            raise WrongCurrency(expected=paid.currency, received=currency)
        # Lock the refunds, so that no operator marks one of them as sent while the chargeback replaces it.
        refunds = list(paid.refunds.select_for_update())
        kept = paid.amount - sum((each.amount for each in refunds if each.sent_at), Decimal())
        if amount != kept or not amount:
            raise WrongAmount(expected=kept, received=amount, what="What the shop still has of this payment is")
        if paid.outcome == Payment.Outcome.PAID and order.state == Order.State.PAID:
            _take_back(order)
        replaced = [each for each in refunds if each.sent_at is None]
        Refund.objects.filter(pk__in=[each.pk for each in replaced]).delete()
        note = "".join(f"Replaces a refund of {each.amount:.2f} that was due. " for each in replaced)[:200].strip()
        with new_reference(reference, "chargeback"):
            refund = paid.refunds.create(amount=amount, chargeback=reference, sent_at=Now(), note=note)
        if report is not None:
            unmatched.close(report)
    return ReceivedChargeback(refund, replayed=False)


def _take_back(order: Order, returned: Mapping[str, int] | None = None) -> Decimal:
    """Take back units of a locked order, and return their price. If no units are left, mark the order as refunded."""
    items = {str(item.product_id): item for item in order.items.all()}
    totals = {sku: item.quantity for sku, item in items.items()} if returned is None else returned
    for sku, total in totals.items():
        if sku not in items or total > items[sku].quantity:
            raise NotReturnable(f"The order has {items[sku].quantity if sku in items else 0} × {sku}, not {total}.")
    units = {sku: total - items[sku].returned for sku, total in totals.items() if total > items[sku].returned}
    if not units:
        return Decimal()
    return_items(order, units)
    if all(item.quantity == item.returned + units.get(sku, 0) for sku, item in items.items()):
        states.change(order, Order.State.REFUNDED)
    return sum((items[sku].price * quantity for sku, quantity in units.items()), Decimal())
