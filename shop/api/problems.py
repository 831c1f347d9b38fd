"""Problem documents (RFC 9457): the table of all problem types, and the responses that are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from django.http import HttpResponse

CONTENT_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problem:
    """A type of problem.

    Args:
        slug: the last part of the URL that identifies and explains the problem type.
        advice: what the caller can do.
        retry_after: seconds to wait before the next attempt; None if another attempt does not help.
    """

    slug: str
    status: int
    title: str
    advice: str
    retry_after: int | None = None

    @property
    def type(self) -> str:
        return f"/api/problems/{self.slug}/"


INVALID = Problem(
    "invalid", 400, "The request is not valid", "Correct what `detail` names, and each field that `errors` lists."
)
UNKNOWN_HOST = Problem(
    "unknown-host", 400, "Unknown host", "Use a host name of the shop. Its operator lists them in ALLOWED_HOSTS."
)
KEY_INVALID = Problem(
    "idempotency-key",
    400,
    "The Idempotency-Key is missing or malformed",
    "Send a new random key, such as a UUID, with each new order, and the same key when you repeat a request.",
)
KEY_REUSED = Problem("key-reused", 422, "The key belongs to another order", "Use a new key for a new order.")
STILL_RUNNING = Problem(
    "still-running", 409, "The same order is being placed", "Repeat the request with the same key.", 1
)
STILL_QUEUED = Problem("still-queued", 409, "The order is queued", "Try again when it is saved.", 1)
SOLD_OUT = Problem("sold-out", 409, "Sold out", "Units of orders that are not paid in time are sold again.")
OVER_LIMIT = Problem("over-limit", 409, "Over the limit per customer", "Order fewer units.")
SALE_NOT_OPEN = Problem("sale-not-open", 409, "The sale is not open", "Check when the sale opens and closes.")
SALE_PAUSED = Problem(
    "sale-paused",
    409,
    "The sale is paused",
    "Repeat the request with the same key until the sale goes on. Nothing was sold.",
    5,
)
PRICE_CHANGED = Problem(
    "price-changed",
    409,
    "The price has changed",
    "Show the customer the new prices in `items`, and order again if they agree.",
)
WAITING_ROOM = Problem(
    "waiting-room",
    403,
    "The sale has a waiting room",
    "Enter the waiting room of the sale. When your turn has come, send its ticket as `Waiting-Ticket` with the order.",
)
NO_GUESTS = Problem(
    "no-guests",
    403,
    "The sale is not open to guests",
    "Order with an account. A guest makes one on the page of their account, and keeps their orders.",
)
NOT_CONFIRMED = Problem(
    "not-confirmed",
    403,
    "The e-mail address is not confirmed",
    "Open the link in the mail from the shop, and log in again. A log-in at /account/login/ sends a new mail.",
)
PROVIDER_DECIDES = Problem(
    "not-believed",
    403,
    "Only the payment provider reports payments",
    "Pay at the provider. The state of the order is `paid` once the provider has reported the payment.",
)
NOT_PAYABLE = Problem("not-payable", 409, "The order cannot be paid any more", "Place a new order.")
NOT_CANCELLABLE = Problem(
    "not-cancellable", 409, "The order cannot be cancelled any more", "Check the state of the order."
)
SIGNATURE = Problem(
    "signature",
    403,
    "The message is not signed by the payment provider",
    "Sign `<seconds since 1970>.<body>` with HMAC-SHA256 and the shared secret, again for each attempt.",
)
UNKNOWN_ORDER = Problem("unknown-order", 404, "No such order yet", "Report the payment again later.", 5)
UNKNOWN_PAYMENT = Problem("unknown-payment", 404, "No such payment yet", "Report the chargeback again later.", 5)
WRONG_AMOUNT = Problem("wrong-amount", 422, "The amount does not match", "An operator of the shop settles the payment.")
WRONG_CURRENCY = Problem(
    "wrong-currency", 422, "The currency does not match", "An operator of the shop settles the payment."
)
REFERENCE_REUSED = Problem(
    "reference-reused", 422, "The reference belongs to another payment", "Use a new reference for a new payment."
)
BUSY = Problem(
    "busy", 503, "Other requests were first", "Nothing was changed. Try again; repeat an order with the same key.", 1
)
NOT_LOADED = Problem("not-loaded", 503, "The stock is not loaded yet", "Try again with the same key.", 5)
UNAVAILABLE = Problem(
    "unavailable",
    503,
    "A server that the shop needs does not answer",
    "Try again; repeat an order with the same key.",
    2,
)
TOO_FAST = Problem("too-fast", 429, "Too many requests", "Send fewer requests.", 1)
TOO_MANY_GUESSES = Problem(
    "too-many-guesses",
    429,
    "Too many wrong passwords",
    "Wait as long as Retry-After says. Refresh tokens instead of logging in again.",
    900,
)
LOGIN_BUSY = Problem("login-busy", 503, "Too many people log in at once", "Try again in a moment.", 1)
WRONG_CREDENTIALS = Problem(
    "wrong-credentials", 401, "Wrong name or password", "Correct the name or the password. Both are case-sensitive."
)
UNAUTHENTICATED = Problem(
    "unauthenticated", 401, "No valid token", "Get a token at /api/token/ and send it as `Authorization: Bearer …`."
)
FORBIDDEN = Problem("forbidden", 403, "Not allowed", "Use an account that has this permission.")
NOT_FOUND = Problem("not-found", 404, "Not found", "See /api/docs/ for the URLs.")
NOT_ALLOWED = Problem("method-not-allowed", 405, "The method is not allowed here", "See /api/docs/ for the methods.")
NOT_ACCEPTABLE = Problem("not-acceptable", 406, "The format is not available", "Send `Accept: */*`.")
LENGTH_REQUIRED = Problem(
    "length-required",
    411,
    "The length of the body is missing",
    "Send a Content-Length, not a chunked body.",
)
UNSUPPORTED = Problem("unsupported-media-type", 415, "The body is not JSON", "Send `Content-Type: application/json`.")
TOO_SLOW = Problem("too-slow", 408, "The body did not arrive in time", "Send it again, on a new connection.")
TOO_LARGE = Problem("too-large", 413, "The body is too large", "Send less. Split a large order into several.")
INTERNAL = Problem(
    "internal", 500, "Internal error", "Try again; repeat an order with the same key: it is placed only once."
)

PROBLEMS = {problem.slug: problem for problem in list(globals().values()) if isinstance(problem, Problem)}


def document(problem: Problem, detail: str = "", **members: Any) -> dict[str, Any]:
    """Return the problem document. Without a `detail`, it contains the general advice."""
    return {
        "type": problem.type,
        "title": problem.title,
        "status": problem.status,
        "detail": detail or problem.advice,
        **members,
    }


def response(
    problem: Problem, detail: str = "", *, headers: Mapping[str, str] | None = None, **members: Any
) -> HttpResponse:
    """Return the HTTP response for a problem. The response is always JSON."""
    all_headers = {"Retry-After": str(problem.retry_after)} if problem.retry_after else {}
    return HttpResponse(
        msgspec.json.encode(document(problem, detail, **members), enc_hook=str),
        status=problem.status,
        headers={**all_headers, **(headers or {})},
        content_type=CONTENT_TYPE,
    )
