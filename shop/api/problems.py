"""Errors as RFC 9457 problem documents: one table of what can go wrong, and one handler that answers with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import orjson
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from rest_framework import exceptions

from inventory import errors
from shop.api.signatures import BadSignature
from shop.models import Order
from shop.orders import payments, states
from shop.orders.errors import (
    KeyReused,
    NotCancellable,
    NotPayable,
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
    """A kind of error.

    Args:
        slug: the last part of its type, which is an address that explains it.
        advice: what the caller may do.
        retry_after: seconds to wait before trying again; None where trying again does not help.
    """

    slug: str
    status: int
    title: str
    advice: str
    retry_after: int | None = None

    @property
    def type(self) -> str:
        return f"/api/problems/{self.slug}/"


INVALID = Problem("invalid", 400, "The request is not valid", "Correct what `errors` points at.")
KEY_INVALID = Problem(
    "idempotency-key",
    400,
    "The Idempotency-Key is missing or malformed",
    "Send a new random key, such as a UUID, with each new order, and the same key when you repeat one.",
)
KEY_REUSED = Problem("key-reused", 422, "The key belongs to another order", "Make a new key for a new order.")
STILL_RUNNING = Problem(
    "still-running", 409, "The same order is being placed right now", "Ask again with the same key.", 1
)
STILL_QUEUED = Problem("still-queued", 409, "The order is queued", "Ask again when it is saved.", 1)
SOLD_OUT = Problem("sold-out", 409, "Sold out", "Units of orders that are not paid in time come back.")
OVER_LIMIT = Problem("over-limit", 409, "Over the limit per customer", "Order fewer units.")
SALE_NOT_OPEN = Problem("sale-not-open", 409, "The sale is not open", "Look at the sale's window.")
NOT_BELIEVED = Problem(
    "not-believed",
    403,
    "The payment provider says what is paid",
    "Pay there, and look at the order: its state is `paid` when the provider has said so.",
)
NOT_PAYABLE = Problem("not-payable", 409, "The order cannot be paid any more", "Place a new order.")
NOT_CANCELLABLE = Problem(
    "not-cancellable", 409, "The order cannot be cancelled any more", "Look at the order's state."
)
SIGNATURE = Problem(
    "signature",
    403,
    "The message is not signed by the payment provider",
    "Sign `<seconds since 1970>.<body>` with HMAC-SHA256 and the shared secret, each time that it is sent.",
)
UNKNOWN_ORDER = Problem("unknown-order", 404, "No such order yet", "Deliver the payment again later.", 5)
WRONG_AMOUNT = Problem("wrong-amount", 422, "The order costs something else", "Look at the order's total.")
REFERENCE_REUSED = Problem(
    "reference-reused", 422, "The reference belongs to another payment", "Use a new reference for a new payment."
)
BUSY = Problem("busy", 503, "Too many buyers at once", "Nothing was sold. Try again with the same key.", 1)
NOT_LOADED = Problem("not-loaded", 503, "The stock is not loaded yet", "Try again with the same key.", 5)
UNAVAILABLE = Problem(
    "unavailable", 503, "A server that the shop needs does not answer", "Try again with the same key.", 2
)
TOO_FAST = Problem("too-fast", 429, "Too many requests", "Slow down.", 1)
UNAUTHENTICATED = Problem(
    "unauthenticated", 401, "No valid token", "Get a token at /api/token/ and send it as `Authorization: Bearer …`."
)
FORBIDDEN = Problem("forbidden", 403, "Not allowed", "Use an account that may do this.")
NOT_FOUND = Problem("not-found", 404, "Not found", "Look at /api/docs/.")
NOT_ALLOWED = Problem("method-not-allowed", 405, "The method is not allowed here", "Look at /api/docs/.")
NOT_ACCEPTABLE = Problem("not-acceptable", 406, "There is no such format", "Ask with `Accept: */*`.")
LENGTH_REQUIRED = Problem(
    "length-required", 411, "The length of the body is not given", "Send a Content-Length, not a chunked body."
)
UNSUPPORTED = Problem("unsupported-media-type", 415, "The body is not JSON", "Send `Content-Type: application/json`.")
TOO_LARGE = Problem("too-large", 413, "The body is too large", "Order in several requests.")
INTERNAL = Problem("internal", 500, "The shop made a mistake", "Ask again with the same key: it is safe.")

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
    (StillRunning, STILL_RUNNING),
    (StillQueued, STILL_QUEUED),
    (KeyReused, KEY_REUSED),
    (ProviderDecides, NOT_BELIEVED),
    (NotPayable, NOT_PAYABLE),
    (NotCancellable, NOT_CANCELLABLE),
    (states.Overtaken, BUSY),
    (payments.UnknownOrder, UNKNOWN_ORDER),
    (payments.WrongAmount, WRONG_AMOUNT),
    (payments.ReferenceReused, REFERENCE_REUSED),
    (Order.DoesNotExist, NOT_FOUND),
    # A refresh token outlives the account that it was made for.
    (get_user_model().DoesNotExist, UNAUTHENTICATED),
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
    (exceptions.ValidationError, INVALID),
    (exceptions.ParseError, INVALID),
)


class BodyTooLarge(exceptions.APIException):
    """The body is larger than any order."""

    status_code = 413
    default_detail = "The body is too large."


class LengthRequired(exceptions.APIException):
    """The body comes in chunks, which WSGI does not hand on."""

    status_code = 411


class BadKey(exceptions.APIException):
    """The Idempotency-Key header is missing or malformed."""

    status_code = 400


def answer(error: Exception, context: Mapping[str, Any]) -> HttpResponse | None:
    """Django REST framework's exception handler: the problem document of an exception, None where we made a mistake."""
    if isinstance(error, BodyTooLarge):
        return response(TOO_LARGE, str(error))
    if isinstance(error, LengthRequired):
        return response(LENGTH_REQUIRED)
    if isinstance(error, BadKey):
        return response(KEY_INVALID, str(error))
    if isinstance(error, BadSignature):
        return response(SIGNATURE, str(error))
    if isinstance(error, UnknownSale):
        return response(INVALID, errors=[{"pointer": "#/sale", "detail": str(error)}])
    if isinstance(error, UnknownProduct):
        return response(INVALID, errors=[{"pointer": "#/items", "detail": str(error)}])
    # InternalError: the transaction has lasted for too long, or the server only reads, as a standby does.
    if isinstance(error, (OperationalError, InterfaceError, InternalError)):
        # The commit may or may not have happened; the key finds out.
        logger.warning("Postgres cannot be used now: %s", error)
        return response(UNAVAILABLE, "The database cannot be used now. Ask again with the same key.")
    if isinstance(error, IntegrityError):
        # A row that the order refers to went away while it was written: what is offered has changed since it was read.
        logger.warning("Postgres refused: %s", error)
        return response(BUSY, "What is offered has just changed. Ask again with the same key.")
    for kind, problem in BY_EXCEPTION:
        if isinstance(error, kind):
            return _response_to(error, problem)
    return None


def _response_to(error: Exception, problem: Problem) -> HttpResponse:
    members: dict[str, Any] = {}
    detail = str(error)
    headers = {"WWW-Authenticate": 'Bearer realm="api"'} if problem is UNAUTHENTICATED else {}
    match error:
        case errors.SoldOut():
            members = {"sku": error.sku, "wanted": error.wanted, "left": error.left}
        case errors.TryAgain():
            # The cause names our servers and keys: it is for the log, not for the buyer.
            ours = isinstance(error, errors.UnknownStrategy)  # and stays until somebody mends the settings
            logger.log(logging.ERROR if ours else logging.INFO, "%s: %s", problem.slug, error)
            detail = ""
        case errors.OverLimit():
            members = {"sku": error.sku, "limit": error.limit, "taken": error.taken}
        case payments.WrongAmount():
            members = {"expected": f"{error.expected:.2f}", "received": f"{error.received:.2f}"}
        case exceptions.ValidationError():
            members = {"errors": list(pointers(error.detail))}
            detail = ""
        case exceptions.Throttled():
            headers["Retry-After"] = str(max(1, ceil(getattr(error, "wait", None) or 1)))
        case exceptions.AuthenticationFailed() if isinstance(error.detail, dict):
            detail = str(error.detail.get("detail", ""))
        case Order.DoesNotExist():
            detail = "You have no such order."
    return response(problem, detail, headers=headers, **members)


def document(problem: Problem, detail: str = "", **members: Any) -> dict[str, Any]:
    """The problem as RFC 9457 has it. Where there is no more to say, its `detail` is what the caller may do."""
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
    """The answer of an API view: JSON, whatever format the view was asked for."""
    all_headers = {"Retry-After": str(problem.retry_after)} if problem.retry_after else {}
    return HttpResponse(
        orjson.dumps(document(problem, detail, **members), default=str),
        status=problem.status,
        headers={**all_headers, **(headers or {})},
        content_type=CONTENT_TYPE,
    )


def pointers(detail: Any, path: str = "#") -> Any:
    """The errors of a serializer as JSON pointers into the body."""
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


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's 404: a problem document below /api/ and /lab/, Django's page elsewhere."""
    return _page(request, NOT_FOUND, f"There is nothing at {request.path}.")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's 400, such as a Host that is not ours: a problem document below /api/ and /lab/."""
    return _page(request, INVALID)


def internal(request: HttpRequest) -> HttpResponse:
    """Django's 500: a problem document below /api/ and /lab/, Django's page elsewhere."""
    return _page(request, INTERNAL)


def _page(request: HttpRequest, problem: Problem, detail: str = "") -> HttpResponse:
    if f"{request.path}/".startswith(("/api/", "/lab/")):
        return response(problem, detail)
    return HttpResponse(f"<!doctype html><title>{problem.title}</title><h1>{problem.title}</h1>", status=problem.status)
