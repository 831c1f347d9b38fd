"""The payment provider: where a buyer pays for an order."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings

from shop.payments.request import PaymentRequest


class PaymentProvider:
    """A payment provider as the shop needs it: the address at which a buyer pays for an order.

    What the buyer does there comes back as a signed report to `POST /api/payments/`, whether the buyer comes back or
    not. The shop marks an order as paid for such a report alone, never because a buyer has returned.

    This one leads to the page that `PAYMENT_PAGE` names, such as that of `manage.py provider`. To connect another
    provider, change the two members below; "Connect a payment provider" in docs/operations.md says how.

    Args:
        page: address of the provider's page.
        secret: shared with the provider. It signs what the buyer is to pay.
    """

    def __init__(self, page: str, secret: str) -> None:
        self._page = page
        self._secret = secret

    @property
    def origin(self) -> str:
        """Scheme, host and port of the provider's pages. The policy of the order page lets its forms lead there."""
        parts = urlsplit(self._page)
        return f"{parts.scheme}://{parts.netloc}"

    def page_for(self, wanted: PaymentRequest) -> str:
        """Return the address at which a buyer pays what is wanted.

        A buyer may ask for it several times, for the same order. If they pay twice, a refund is due.
        """
        return f"{self._page}?{wanted.signed(self._secret)}"


def provider() -> PaymentProvider | None:
    """Return the payment provider of this shop; None if `PAYMENT_PAGE` names none."""
    return PaymentProvider(settings.PAYMENT_PAGE, settings.PAYMENT_SECRET) if settings.PAYMENT_PAGE else None
