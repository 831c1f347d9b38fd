"""The provider that speaks the shop's own protocol, such as the simulated one of `manage.py provider`."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from rest_framework.request import Request

from shop.payments import signatures
from shop.payments.provider import PaymentProvider, ProviderReport, ReportKind
from shop.payments.request import PaymentRequest

CHARGEBACKS = "/api/chargebacks/"


class SignedProvider(PaymentProvider):
    """A provider that shares `PAYMENT_SECRET` with the shop. Both use it to sign their messages to each other.

    Buyers pay at `PAYMENT_PAGE`, which gets a signed payment request. docs/api.md describes the reports.
    """

    @property
    def connected(self) -> bool:
        """Whether `PAYMENT_SECRET` is set."""
        return bool(settings.PAYMENT_SECRET)

    @property
    def origin(self) -> str:
        """Scheme, host and port of `PAYMENT_PAGE`; empty if `PAYMENT_PAGE` is not set."""
        parts = urlsplit(settings.PAYMENT_PAGE)
        return f"{parts.scheme}://{parts.netloc}" if settings.PAYMENT_PAGE else ""

    def page_for(self, wanted: PaymentRequest) -> str:
        """Return `PAYMENT_PAGE` with the signed payment request."""
        return f"{settings.PAYMENT_PAGE}?{wanted.signed(settings.PAYMENT_SECRET)}"

    def read_webhook(self, request: Request) -> ProviderReport:
        """Check the signature, and return the report. Payments and chargebacks have different URLs.

        Raises:
            BadSignature: the signature is missing, wrong or too old, or the shop has no secret.
        """
        signatures.verify(request.headers.get(signatures.HEADER, ""), request.body)
        kind = ReportKind.CHARGEBACK if request.path == CHARGEBACKS else ReportKind.PAYMENT
        return ProviderReport(kind, request.data)
