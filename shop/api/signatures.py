"""Who signs with the shared secret is the payment provider: HMAC-SHA256 over the moment and the body."""

from __future__ import annotations

import hashlib
import hmac
import re
import time

from django.conf import settings
from rest_framework.exceptions import APIException

HEADER = "Payment-Signature"
FORM = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")
# Seconds that a signature is good for, either way, since clocks differ. A message that is sent again is signed anew.
TOLERANCE = 300


class BadSignature(APIException):
    """The message is not the provider's, or not of now."""

    status_code = 403


def sign(body: bytes, *, at: int | None = None) -> str:
    """The header's value for a body.

    Args:
        at: seconds since 1970; now if absent.
    """
    moment = int(time.time()) if at is None else at
    return f"t={moment},v1={_digest(body, moment)}"


def verify(header: str, body: bytes) -> None:
    """Believe a message.

    Raises:
        BadSignature: why not.
    """
    if not settings.PAYMENT_SECRET:
        raise BadSignature("The shop knows no secret: set PAYMENT_SECRET.")
    said = FORM.fullmatch(header)
    if said is None:
        raise BadSignature(f"Send a {HEADER} header that matches {FORM.pattern}.")
    moment = int(said[1])
    if not hmac.compare_digest(_digest(body, moment), said[2]):
        raise BadSignature("The signature is not that of this body.")
    if abs(time.time() - moment) > TOLERANCE:
        raise BadSignature(f"It was signed more than {TOLERANCE} seconds ago, or by a clock that is wrong.")


def _digest(body: bytes, moment: int) -> str:
    return hmac.new(settings.PAYMENT_SECRET.encode(), b"%d.%b" % (moment, body), hashlib.sha256).hexdigest()
