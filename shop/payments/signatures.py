"""Make and check signatures of reports: HMAC-SHA256 of time and body with the secret shared with the provider."""

from __future__ import annotations

import hashlib
import hmac
import re
import time

from django.conf import settings

from shop.payments.provider import BadSignature

HEADER = "Payment-Signature"
FORM = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")
TOLERANCE = 300
"""Seconds by which the time of a signature may differ from now. The provider signs each repeated report again."""


def sign(body: bytes, *, at: int | None = None) -> str:
    """Return the value of the signature header for a body.

    Args:
        at: time of the signature in seconds since 1970; None means now.
    """
    moment = int(time.time()) if at is None else at
    return f"t={moment},v1={_digest(body, moment)}"


def verify(header: str, body: bytes) -> None:
    """Check the signature of a message.

    Raises:
        BadSignature: the header is missing or malformed, the signature does not match, its time differs from now by
            more than `TOLERANCE`, or the shop has no secret.
    """
    if not settings.PAYMENT_SECRET:
        raise BadSignature("This shop accepts no payments from a provider: PAYMENT_SECRET is not set.")
    match = FORM.fullmatch(header)
    if match is None:
        wrong = "malformed" if header else "missing"
        raise BadSignature(f"The signature is {wrong}. Send a {HEADER} header that matches {FORM.pattern}.")
    moment = int(match[1])
    if not hmac.compare_digest(_digest(body, moment), match[2]):
        raise BadSignature("The signature does not match the body.")
    if abs(time.time() - moment) > TOLERANCE:
        raise BadSignature(f"The signature is more than {TOLERANCE} seconds old, or the clock that made it is wrong.")


def _digest(body: bytes, moment: int) -> str:
    return hmac.new(settings.PAYMENT_SECRET.encode(), b"%d.%b" % (moment, body), hashlib.sha256).hexdigest()
