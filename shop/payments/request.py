"""A signed payment request: the amount that a buyer has to pay. The provider's page gets it in the query string."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Self
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

SIGNATURE = "&signature="


class NotSigned(Exception):
    """The request was not signed with the shared secret, or was changed after it was signed."""


@dataclass(frozen=True, slots=True)
class PaymentRequest:
    """A request to a buyer to pay for one order.

    Args:
        order: id of the order.
        amount: total of the order.
        currency: code of ISO 4217.
        pay_by: when the order expires if it is not paid.
        back: URL of the order page, to which the provider leads the buyer back.
        language: language of the buyer, such as `en`.
    """

    order: UUID
    amount: Decimal
    currency: str
    pay_by: datetime
    back: str
    language: str

    def signed(self, secret: str) -> str:
        """Return the request as a query string that ends with its signature."""
        text = urlencode(
            {
                "order": self.order,
                "amount": f"{self.amount:.2f}",
                "currency": self.currency,
                "pay_by": self.pay_by.isoformat(),
                "back": self.back,
                "language": self.language,
            }
        )
        return f"{text}{SIGNATURE}{_signature(text, secret)}"

    @classmethod
    def read(cls, query: str, secret: str) -> Self:
        """Check the signature of a query string, and return its payment request.

        Raises:
            NotSigned: the signature does not match.
        """
        text, _, signature = query.rpartition(SIGNATURE)
        if not hmac.compare_digest(_signature(text, secret).encode(), signature.encode(errors="replace")):
            raise NotSigned("The signature does not match the request.")
        fields = dict(parse_qsl(text, keep_blank_values=True))
        return cls(
            UUID(fields["order"]),
            Decimal(fields["amount"]),
            fields["currency"],
            datetime.fromisoformat(fields["pay_by"]),
            fields["back"],
            fields["language"],
        )


def _signature(text: str, secret: str) -> str:
    # The same secret also signs reports of payments, whose signed text begins with digits. So with this prefix, the
    # signature of a request is never valid for a report.
    signed = f"payment request {text}".encode(errors="replace")
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
