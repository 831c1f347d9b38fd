"""The interface to the payment provider: one class, which the setting `PAYMENT_PROVIDER` names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from rest_framework.exceptions import APIException
from rest_framework.request import Request

from shop.payments.request import PaymentRequest


class BadSignature(APIException):
    """The webhook is not signed by the provider, or its signature is too old."""

    status_code = 403


class ReportKind(StrEnum):
    """The kind of a report: a payment or a chargeback."""

    PAYMENT = "payment"
    CHARGEBACK = "chargeback"


@dataclass(frozen=True, slots=True)
class ProviderReport:
    """A report of the provider in the words of the shop. The shop validates it; the provider's class need not.

    Args:
        content: the fields of a body of `POST /api/payments/` or `POST /api/chargebacks/`. Amounts are texts with two
            decimals, such as "19.80". `reference` is the provider's reference of the payment or chargeback: 1 to 128
            letters, digits and characters of `._~:-`.
    """

    kind: ReportKind
    content: Any


class PaymentProvider(ABC):
    """A payment provider: where buyers pay, and what its webhooks report.

    To connect a provider, implement `origin`, `page_for` and `read_webhook` in a subclass, and set
    `PAYMENT_PROVIDER` to the dotted path of the subclass. Each process creates one object of it, without arguments, and
    all its threads share this object.

    The provider sends its webhooks to `POST /api/payments/`. Only a webhook marks an order as paid, because a buyer who
    returns to the shop may not have paid.

    The shop does not ask a provider for refunds. The shop lists the refunds that are due, and an operator sends the
    money.
    """

    accepted: str = ""
    """Plain text with which to answer an accepted webhook, such as `success` for Alipay; empty to answer in JSON."""

    @property
    def connected(self) -> bool:
        """Whether buyers can pay at this provider. If not, `PAY_WITHOUT_PROVIDER` can let them mark orders as paid."""
        return True

    @property
    @abstractmethod
    def origin(self) -> str:
        """Scheme, host and port of the page where buyers pay; empty if there is no such page.

        The Content-Security-Policy of the order page allows its form to lead to this origin. A subclass may define
        `origin` as a class attribute.
        """

    @abstractmethod
    def page_for(self, wanted: PaymentRequest) -> str:
        """Return the URL at which a customer pays. The shop calls this method at each press of "Pay".

        While `origin` is empty, the shop has no such button. A buyer may open several of these URLs for one order. If
        the buyer pays twice, a refund is due.
        """

    @abstractmethod
    def read_webhook(self, request: Request) -> ProviderReport | None:
        """Check the signature of a webhook, and return its report; None if it reports no payment and no chargeback.

        Args:
            request: `body` are the bytes that were signed, `headers` the headers, `data` the JSON of the body.

        Raises:
            BadSignature: the webhook is not from the provider, or too old. Nothing is recorded, and the answer is 403.
        """


def provider() -> PaymentProvider:
    """Return the payment provider of this shop.

    Raises:
        ImproperlyConfigured: `PAYMENT_PROVIDER` names no subclass of `PaymentProvider`, or a subclass that cannot be
            created without arguments.
    """
    return _load(settings.PAYMENT_PROVIDER)


@cache
def _load(path: str) -> PaymentProvider:
    try:
        chosen = import_string(path)()
    except (ImportError, TypeError) as error:
        raise ImproperlyConfigured(f"PAYMENT_PROVIDER must name a class of the shop or your own: {error}.") from error
    if not isinstance(chosen, PaymentProvider):
        raise ImproperlyConfigured(f"PAYMENT_PROVIDER must name a subclass of PaymentProvider, not {path}.")
    return chosen
