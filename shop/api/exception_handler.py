"""The exception handler of the API, which turns exceptions into problem documents (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from math import ceil
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpResponse
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework_simplejwt.exceptions import TokenError

from inventory import errors
from inventory.outages import ANSWERING, is_away, outages
from shop.accounts.errors import AddressNotConfirmed, HashingBusy, NotNow, TooManyGuesses, TriesUnderWay
from shop.api import problems
from shop.api.errors import BadKey, BodyTooLarge, LengthRequired, WrongCredentials
from shop.api.problems import Problem, response
from shop.models import Order
from shop.orders import payments, states
from shop.orders.errors import (
    FewerLeft,
    KeyReused,
    NoGuests,
    NotCancellable,
    NotPayable,
    PriceChanged,
    ProviderDecides,
    SaleNotOpen,
    SalePaused,
    StillQueued,
    StillRunning,
    UnknownProduct,
    UnknownSale,
)
from shop.payments.provider import BadSignature
from shop.waiting.errors import NotAdmitted, RoomUnavailable

logger = logging.getLogger(__name__)

BY_EXCEPTION: tuple[tuple[type[Exception], Problem], ...] = (
    (errors.SoldOut, problems.SOLD_OUT),
    (FewerLeft, problems.SOLD_OUT),
    (errors.OverLimit, problems.OVER_LIMIT),
    (errors.UnknownCustomer, problems.UNAUTHENTICATED),
    (errors.SaleClosed, problems.SALE_NOT_OPEN),
    (errors.Duplicate, problems.STILL_RUNNING),
    (errors.StockNotLoaded, problems.NOT_LOADED),
    (errors.StockUnavailable, problems.UNAVAILABLE),
    (errors.TryAgain, problems.BUSY),
    (SaleNotOpen, problems.SALE_NOT_OPEN),
    (SalePaused, problems.SALE_PAUSED),
    (PriceChanged, problems.PRICE_CHANGED),
    (NotAdmitted, problems.WAITING_ROOM),
    (RoomUnavailable, problems.UNAVAILABLE),
    (NoGuests, problems.NO_GUESTS),
    (AddressNotConfirmed, problems.NOT_CONFIRMED),
    (StillRunning, problems.STILL_RUNNING),
    (StillQueued, problems.STILL_QUEUED),
    (KeyReused, problems.KEY_REUSED),
    (ProviderDecides, problems.PROVIDER_DECIDES),
    (NotPayable, problems.NOT_PAYABLE),
    (NotCancellable, problems.NOT_CANCELLABLE),
    (states.StateConflict, problems.BUSY),
    (payments.UnknownOrder, problems.UNKNOWN_ORDER),
    (payments.UnknownPayment, problems.UNKNOWN_PAYMENT),
    (payments.WrongAmount, problems.WRONG_AMOUNT),
    (payments.WrongCurrency, problems.WRONG_CURRENCY),
    (payments.ReferenceReused, problems.REFERENCE_REUSED),
    (Order.DoesNotExist, problems.NOT_FOUND),
    (TooManyGuesses, problems.TOO_MANY_GUESSES),
    (HashingBusy, problems.LOGIN_BUSY),
    (TriesUnderWay, problems.LOGIN_BUSY),
    (TokenError, problems.UNAUTHENTICATED),
    (Http404, problems.NOT_FOUND),
    (exceptions.NotFound, problems.NOT_FOUND),
    (exceptions.NotAuthenticated, problems.UNAUTHENTICATED),
    (exceptions.AuthenticationFailed, problems.UNAUTHENTICATED),
    (exceptions.PermissionDenied, problems.FORBIDDEN),
    (PermissionDenied, problems.FORBIDDEN),
    (exceptions.MethodNotAllowed, problems.NOT_ALLOWED),
    (exceptions.NotAcceptable, problems.NOT_ACCEPTABLE),
    (exceptions.UnsupportedMediaType, problems.UNSUPPORTED),
    (exceptions.Throttled, problems.TOO_FAST),
    (exceptions.ParseError, problems.INVALID),
    # `handle_exception` handles the following errors itself, to add details. `problem_of` needs them in this table.
    (UnknownSale, problems.INVALID),
    (UnknownProduct, problems.INVALID),
    (OperationalError, problems.UNAVAILABLE),
    (InterfaceError, problems.UNAVAILABLE),
    (InternalError, problems.UNAVAILABLE),
    (IntegrityError, problems.BUSY),
)


def problem_of(error: Exception) -> Problem:
    """Return the problem type of an error."""
    return next((problem for kind, problem in BY_EXCEPTION if isinstance(error, kind)), problems.INTERNAL)


def handle_exception(error: Exception, context: Mapping[str, Any]) -> HttpResponse | None:
    """Return a problem document for an exception, or None if the exception is a bug of the shop.

    The settings name this function as the exception handler of Django REST framework.
    """
    if isinstance(error, BodyTooLarge):
        return response(problems.TOO_LARGE, str(error))
    if isinstance(error, LengthRequired):
        return response(problems.LENGTH_REQUIRED)
    if isinstance(error, BadKey):
        return response(problems.KEY_INVALID, str(error))
    if isinstance(error, WrongCredentials):
        return _response_to(error, problems.WRONG_CREDENTIALS, context["request"])
    if isinstance(error, BadSignature):
        return response(problems.SIGNATURE, str(error))
    if isinstance(error, UnknownSale):
        return _invalid([{"pointer": "#/sale", "detail": str(error)}])
    if isinstance(error, UnknownProduct):
        return _invalid([{"pointer": "#/items", "detail": str(error)}])
    if isinstance(error, exceptions.ValidationError):
        return _invalid(list(pointers(error.detail)))
    # InternalError means that the transaction has reached its time limit, or that the server is read-only, for example
    # a standby.
    if isinstance(error, (OperationalError, InterfaceError, InternalError)):
        # The transaction may have been committed. The client finds out by repeating the request with the same key.
        if is_away(error):
            outages.failed(ANSWERING, error)
        else:
            logger.warning("Postgres is read-only, or a wait for a lock took too long: %s", error)
        return response(problems.UNAVAILABLE, f"The database cannot be used now. {problems.UNAVAILABLE.advice}")
    if isinstance(error, IntegrityError):
        # A row that the order refers to was deleted after the offer was read.
        logger.warning("The sale has changed while an order was saved: %s", error)
        return response(problems.BUSY, f"The sale has just changed. {problems.BUSY.advice}")
    for kind, problem in BY_EXCEPTION:
        if isinstance(error, kind):
            return _response_to(error, problem, context["request"])
    return None


def _invalid(errors: list[dict[str, str]]) -> HttpResponse:
    return response(problems.INVALID, "Correct the fields that `errors` lists.", errors=errors)


def _response_to(error: Exception, problem: Problem, request: Request) -> HttpResponse:
    members: dict[str, Any] = {}
    detail = str(error)
    headers = {"WWW-Authenticate": 'Bearer realm="api"'} if problem.status == 401 else {}
    match error:
        case errors.SoldOut():
            members = {"sku": error.sku, "wanted": error.wanted, "left": error.left}
        case FewerLeft():
            members = {"sku": error.sku, "wanted": error.wanted}
        case errors.TryAgain():
            # Log the cause instead of sending it, because it contains names of servers and keys. An unknown strategy is
            # an error, because an operator has to correct the settings.
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
            wait = max(1, ceil(getattr(error, "wait", None) or 1))
            headers["Retry-After"] = str(wait)
            seconds = f"{wait} second{'s' * (wait > 1)}"
            rules = [throttle.rule for throttle in request.parser_context["view"].get_throttles()]
            detail = " ".join([f"Try again in {seconds}.", *rules])
        case exceptions.NotAuthenticated():
            detail = problem.advice
        case Order.DoesNotExist():
            detail = "You have no such order."
    return response(problem, detail, headers=headers, **members)


def pointers(detail: Any, path: str = "#") -> Any:
    """Yield each error of a serializer with a JSON pointer to the field in the body."""
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
