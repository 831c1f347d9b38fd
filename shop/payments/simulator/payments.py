"""The payments at the simulated provider and their reports to the shop. They are only in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from shop.payments.request import PaymentRequest
from shop.payments.signed import CHARGEBACKS
from shop.payments.simulator.reports import PAYMENTS, Courier, Report

MAX_PAYMENTS = 1000
"""Maximum number of payments in memory. The oldest are deleted first."""
CENT = Decimal("0.01")


class Button(StrEnum):
    """The buttons on the page of the provider."""

    PAY = "pay"
    LATE = "late"
    TWICE = "twice"
    OUT_OF_ORDER = "out-of-order"
    WRONG_AMOUNT = "wrong-amount"
    DECLINE = "decline"


@dataclass(frozen=True, slots=True)
class SimulatedPayment:
    """A payment at the simulated provider: the buyer's choice, and the reports that follow from the choice.

    Args:
        reference: the provider's reference of the payment.
    """

    reference: str
    wanted: PaymentRequest
    choice: Button
    reports: Sequence[Report]

    @property
    def ended(self) -> bool:
        """Whether every report has ended: the shop has accepted it, or the provider has given it up."""
        return all(report.ended for report in self.reports)


def reports_of(choice: Button, wanted: PaymentRequest, *, reference: str, seconds: float) -> list[Report]:
    """Return the reports that follow from a buyer's choice.

    Args:
        reference: reference of the payment. The reference of a chargeback is made from it.
        seconds: delay of a late payment.
    """
    paid = {
        "reference": reference,
        "order": str(wanted.order),
        "amount": f"{wanted.amount:.2f}",
        "currency": wanted.currency,
    }
    match choice:
        case Button.PAY:
            return [Report(PAYMENTS, paid)]
        case Button.LATE:
            return [Report(PAYMENTS, paid, delay=seconds)]
        case Button.TWICE:
            return [Report(PAYMENTS, paid), Report(PAYMENTS, paid)]
        case Button.OUT_OF_ORDER:
            taken_back = {"reference": f"{reference}-back", "payment": reference}
            first = Report(CHARGEBACKS, {**taken_back, "amount": paid["amount"], "currency": wanted.currency})
            return [first, Report(PAYMENTS, paid, after=first)]
        case Button.WRONG_AMOUNT:
            return [Report(PAYMENTS, {**paid, "amount": f"{wanted.amount - CENT:.2f}"})]
        case Button.DECLINE:
            return []


class Payments:
    """The payments of this process, by reference.

    Args:
        courier: delivers the reports to the shop.
    """

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._made: OrderedDict[str, SimulatedPayment] = OrderedDict()
        self._mutex = threading.Lock()

    def make(self, choice: Button, wanted: PaymentRequest, *, reference: str, seconds: float) -> SimulatedPayment:
        """Make a payment, and begin to send its reports. A call with the same reference returns the same payment."""
        with self._mutex:
            if (before := self._made.get(reference)) is not None:
                return before
            reports = reports_of(choice, wanted, reference=reference, seconds=seconds)
            made = self._made[reference] = SimulatedPayment(reference, wanted, choice, reports)
            if len(self._made) > MAX_PAYMENTS:
                self._made.popitem(last=False)
        for report in made.reports:
            self._courier.start(report)
        return made

    def get(self, reference: str) -> SimulatedPayment | None:
        """Return the payment with this reference; None if this process has no such payment."""
        return self._made.get(reference)

    def unfinished(self) -> int:
        """Return how many payments have a report that is neither accepted by the shop nor given up."""
        return sum(not payment.ended for payment in list(self._made.values()))
