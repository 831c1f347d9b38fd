"""Read the customer, the idempotency key and the body of a request, and mark responses to repeated requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from shop.accounts.tokens import GUEST, SESSION, require_session
from shop.api.errors import BadKey, BodyTooLarge, LengthRequired
from shop.api.parsers import MAX_BODY, JsonParser

KEY = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
"""Pattern of a valid idempotency key."""
BODIES, LONGEST_BODY = 1000, 1000
"""Maximum number of bodies in a process's cache, and the maximum bytes of a cached body."""

Result = TypeVar("Result")


def customer_of(request: Request) -> int:
    """Return the user id in the access token. The token was checked; its account may have been closed since."""
    return int(str(request.user.pk))


def is_guest(request: Request) -> bool:
    """Return whether the access token of the request belongs to a guest."""
    token: Any = request.auth
    return bool(token.get(GUEST, False))


def account_of(request: Request) -> int:
    """Return the user id in the token, after checking that the account is active and its session has not ended.

    Placing an order uses `customer_of` instead, because `saving.save` checks whether the account is active.

    Raises:
        TokenError: the token is valid, but the account was closed, or its session has ended.
    """
    customer = customer_of(request)
    token: Any = request.auth
    require_session(customer, token.get(SESSION))
    return customer


def idempotency_key(request: Request) -> str:
    """Return the idempotency key of a request. The quotes around it, which the IETF draft demands, are optional.

    Raises:
        BadKey: the key is missing or malformed.
    """
    header = request.headers.get("Idempotency-Key")
    key = (header or "").strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not KEY.fullmatch(key):
        raise BadKey(
            f"The Idempotency-Key is {'missing' if header is None else 'malformed'}. "
            f"Send one that matches {KEY.pattern}, such as a UUID, and a new one for each order."
        )
    return key


def require_length(request: Request) -> None:
    """Refuse a chunked body, because Django would read it as an empty body."""
    if "Content-Length" not in request.headers and "Transfer-Encoding" in request.headers:
        raise LengthRequired


def json_object(request: Request) -> dict[str, Any]:
    """Return the body of a request.

    Raises:
        LengthRequired: the body is chunked.
        UnsupportedMediaType, BodyTooLarge, ParseError: the body is not JSON that `JsonParser` accepts.
        ValidationError: the body is not a JSON object.
    """
    require_length(request)
    return as_object(request.data)


def remembered(validate: Callable[[dict[str, Any]], Result]) -> Callable[[Request], Result]:
    """Return a function that validates the body of a request, and caches the result for requests with an equal body.

    The cache saves time, because nearly all buyers of a sale send the same bytes. Invalid bodies are not cached.

    Args:
        validate: returns the validated content of a JSON object. Requests share the result, so it must be immutable.
    """

    @lru_cache(BODIES)
    def validated(body: bytes) -> Result:
        return validate(as_object(JsonParser().parse(BytesIO(body))))

    def of_request(request: Request) -> Result:
        length = request.META.get("CONTENT_LENGTH", "")
        short = length.isdecimal() and 0 < int(length) <= LONGEST_BODY
        if short and request.content_type == JsonParser.media_type:
            return validated(request._request.body)
        return validate(json_object(request))

    return of_request


def as_object(content: Any) -> dict[str, Any]:
    """Return the parsed content of a body.

    Raises:
        ValidationError: the content is not a JSON object.
    """
    if not isinstance(content, dict):
        raise ValidationError(["The body must be a JSON object."])
    return content


def raw_body(request: Request) -> bytes:
    """Return the body as bytes. `request.data` can still be read afterwards.

    Raises:
        LengthRequired, BodyTooLarge: the body is refused.
    """
    require_length(request)
    if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BODY:
        raise BodyTooLarge(f"The body is longer than {MAX_BODY} bytes.")
    return bytes(request._request.body)


def replay_header(*, replayed: bool) -> dict[str, str]:
    """Return the response header that marks a repeated request; empty for a first request."""
    return {"Idempotent-Replayed": "true"} if replayed else {}
