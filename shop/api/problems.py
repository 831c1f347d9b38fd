"""Problem documents (RFC 9457): the table of all problems, and the handler that maps exceptions to them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import orjson
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpResponse
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework_simplejwt.exceptions import TokenError

from inventory import errors
from shop.accounts.errors import HashingBusy, NotNow, TooManyGuesses
from shop.api.signatures import BadSignature
from shop.models import Order
from shop.orders import payments, states
from shop.orders.errors import (
    KeyReused,
    NotCancellable,
    NotPayable,
    PriceChanged,
    ProviderDecides,
    SaleNotOpen,
    StillQueued,
    StillRunning,
    UnknownProduct,
    UnknownSale,
)

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problem:
    """A type of problem.

    Args:
        slug: the last part of the URL that is its type and explains it.
        advice: what the caller can do.
        retry_after: seconds to wait before the next attempt; None when another attempt does not help.
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
PRICE_CHANGED = Problem(
    "price-changed",
    409,
    "The price has changed",
    "Show the customer the new prices in `items`, and order again if they agree.",
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

BY_EXCEPTION: tuple[tuple[type[Exception], Problem], ...] = (
    (errors.SoldOut, SOLD_OUT),
    (errors.OverLimit, OVER_LIMIT),
    (errors.UnknownCustomer, UNAUTHENTICATED),
    (errors.SaleClosed, SALE_NOT_OPEN),
    (errors.Duplicate, STILL_RUNNING),
    (errors.StockNotLoaded, NOT_LOADED),
    (errors.StockUnavailable, UNAVAILABLE),
    (errors.TryAgain, BUSY),
    (SaleNotOpen, SALE_NOT_OPEN),
    (PriceChanged, PRICE_CHANGED),
    (StillRunning, STILL_RUNNING),
    (StillQueued, STILL_QUEUED),
    (KeyReused, KEY_REUSED),
    (ProviderDecides, PROVIDER_DECIDES),
    (NotPayable, NOT_PAYABLE),
    (NotCancellable, NOT_CANCELLABLE),
    (states.StateConflict, BUSY),
    (payments.UnknownOrder, UNKNOWN_ORDER),
    (payments.UnknownPayment, UNKNOWN_PAYMENT),
    (payments.WrongAmount, WRONG_AMOUNT),
    (payments.WrongCurrency, WRONG_CURRENCY),
    (payments.ReferenceReused, REFERENCE_REUSED),
    (Order.DoesNotExist, NOT_FOUND),
    (TooManyGuesses, TOO_MANY_GUESSES),
    (HashingBusy, LOGIN_BUSY),
    (TokenError, UNAUTHENTICATED),
    (Http404, NOT_FOUND),
    (exceptions.NotFound, NOT_FOUND),
    (exceptions.NotAuthenticated, UNAUTHENTICATED),
    (exceptions.AuthenticationFailed, UNAUTHENTICATED),
    (exceptions.PermissionDenied, FORBIDDEN),
    (PermissionDenied, FORBIDDEN),
    (exceptions.MethodNotAllowed, NOT_ALLOWED),
    (exceptions.NotAcceptable, NOT_ACCEPTABLE),
    (exceptions.UnsupportedMediaType, UNSUPPORTED),
    (exceptions.Throttled, TOO_FAST),
    (exceptions.ParseError, INVALID),
)


class BodyTooLarge(exceptions.APIException):
    """The body is larger than `MAX_BODY`."""

    status_code = 413
    default_detail = "The body is too large."


class LengthRequired(exceptions.APIException):
    """The body is chunked. WSGI does not pass on such bodies."""

    status_code = 411


class WrongCredentials(exceptions.AuthenticationFailed):
    """There is no active account with this name and password."""


class BadKey(exceptions.APIException):
    """The Idempotency-Key header is missing or malformed."""

    status_code = 400


def handle_exception(error: Exception, context: Mapping[str, Any]) -> HttpResponse | None:
    """Answer an exception with a problem document. Return None for one that is a bug of the shop.

    This is the exception handler of Django REST framework.
    """
    if isinstance(error, BodyTooLarge):
        return response(TOO_LARGE, str(error))
    if isinstance(error, LengthRequired):
        return response(LENGTH_REQUIRED)
    if isinstance(error, BadKey):
        return response(KEY_INVALID, str(error))
    if isinstance(error, WrongCredentials):
        return _response_to(error, WRONG_CREDENTIALS, context["request"])
    if isinstance(error, BadSignature):
        return response(SIGNATURE, str(error))
    if isinstance(error, UnknownSale):
        return _invalid([{"pointer": "#/sale", "detail": str(error)}])
    if isinstance(error, UnknownProduct):
        return _invalid([{"pointer": "#/items", "detail": str(error)}])
    if isinstance(error, exceptions.ValidationError):
        return _invalid(list(pointers(error.detail)))
    # InternalError: the transaction has reached its time limit, or the server is read-only, such as a standby.
    if isinstance(error, (OperationalError, InterfaceError, InternalError)):
        # It is unknown whether the transaction was committed. A request with the same key finds out.
        logger.warning("Postgres does not answer or is read-only: %s", error)
        return response(UNAVAILABLE, f"The database cannot be used now. {UNAVAILABLE.advice}")
    if isinstance(error, IntegrityError):
        # A row that the order refers to was deleted after the offer was read.
        logger.warning("The sale has changed while an order was saved: %s", error)
        return response(BUSY, f"The sale has just changed. {BUSY.advice}")
    for kind, problem in BY_EXCEPTION:
        if isinstance(error, kind):
            return _response_to(error, problem, context["request"])
    return None


def _invalid(errors: list[dict[str, str]]) -> HttpResponse:
    return response(INVALID, "Correct the fields that `errors` lists.", errors=errors)


def _response_to(error: Exception, problem: Problem, request: Request) -> HttpResponse:
    members: dict[str, Any] = {}
    detail = str(error)
    headers = {"WWW-Authenticate": 'Bearer realm="api"'} if problem.status == 401 else {}
    match error:
        case errors.SoldOut():
            members = {"sku": error.sku, "wanted": error.wanted, "left": error.left}
        case errors.TryAgain():
            # Log the cause instead of sending it: it contains names of servers and keys. An unknown strategy is an
            # error, because it stays until an operator corrects the settings.
            level = logging.ERROR if isinstance(error, errors.UnknownStrategy) else logging.INFO
            logger.log(level, "%s: %s", problem.slug, error)
            detail = ""
        case errors.OverLimit():
            members = {"sku": error.sku, "limit": error.limit, "taken": error.taken}
        case PriceChanged():
            members = {
                "items": [
                    {**asdict(item), "expected": f"{item.expected:.2f}", "price": f"{item.price:.2f}"}
                    for item in error.items
                ]
            }
        case payments.WrongAmount():
            members = {"expected": f"{error.expected:.2f}", "received": f"{error.received:.2f}"}
        case payments.WrongCurrency():
            members = {"expected": error.expected, "received": error.received}
        case errors.UnknownCustomer():
            detail = "The account of this token is closed."
        case Http404() if not detail:
            detail = f"There is nothing at {request.get_full_path()}."
        case exceptions.UnsupportedMediaType() if not request.content_type:
            detail = "The body has no Content-Type."
        case exceptions.NotAcceptable():
            media_types = sorted({renderer.media_type for renderer in error.available_renderers or ()})
            detail = f"The Accept header allows none of the formats that there are: {', '.join(media_types)}."
        case NotNow():
            headers["Retry-After"] = str(error.wait)
        case exceptions.Throttled():
            headers["Retry-After"] = str(max(1, ceil(getattr(error, "wait", None) or 1)))
        case Order.DoesNotExist():
            detail = "You have no such order."
    return response(problem, detail, headers=headers, **members)


def document(problem: Problem, detail: str = "", **members: Any) -> dict[str, Any]:
    """Return the problem document. Its `detail` is the advice if there is nothing more specific."""
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
    """Return the HTTP response for a problem. It is always JSON."""
    all_headers = {"Retry-After": str(problem.retry_after)} if problem.retry_after else {}
    return HttpResponse(
        orjson.dumps(document(problem, detail, **members), default=str),
        status=problem.status,
        headers={**all_headers, **(headers or {})},
        content_type=CONTENT_TYPE,
    )


def pointers(detail: Any, path: str = "#") -> Any:
    """Yield the errors of a serializer with JSON pointers into the body."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            yield from pointers(inner, path if name == "non_field_errors" else f"{path}/{name}")
    elif isinstance(detail, list) and any(isinstance(inner, dict) for inner in detail):
        for position, inner in enumerate(detail):
            yield from pointers(inner, f"{path}/{position}")
    elif isinstance(detail, list):
        for inner in detail:
            yield from pointers(inner, path)
    else:
        yield {"pointer": path, "detail": str(detail)}
