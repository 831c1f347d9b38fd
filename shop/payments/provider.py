"""The interface to the payment provider, at whose page a buyer pays for an order."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings

from shop.payments.request import PaymentRequest


class PaymentProvider:
    """A payment provider that has a page where buyers pay.

    The provider sends the result as a signed report to `POST /api/payments/`. Only such a report marks an order as
    paid. A buyer who comes back to the shop proves nothing.

    This class leads buyers to `PAYMENT_PAGE`, for example that of `manage.py provider`. To connect another provider,
    change the two members below; "Connect a payment provider" in docs/operations.md says how.

    Args:
        page: URL of the provider's page.
        secret: secret shared with the provider, which signs payment requests.
    """

    def __init__(self, page: str, secret: str) -> None:
        self._page = page
        self._secret = secret

    @property
    def origin(self) -> str:
        """Scheme, host and port of the provider. The Content-Security-Policy of the order page allows forms to it."""
        parts = urlsplit(self._page)
        return f"{parts.scheme}://{parts.netloc}"

    def page_for(self, wanted: PaymentRequest) -> str:
        """Return the URL at which a buyer pays.

        A buyer may open several such URLs for one order. If they pay twice, a refund is due.
        """
        return f"{self._page}?{wanted.signed(self._secret)}"


def provider() -> PaymentProvider | None:
    """Return the payment provider of this shop; None if `PAYMENT_PAGE` is not set."""
    return PaymentProvider(settings.PAYMENT_PAGE, settings.PAYMENT_SECRET) if settings.PAYMENT_PAGE else None
