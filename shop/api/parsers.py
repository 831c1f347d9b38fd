"""Parse JSON bodies of limited size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import msgspec
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from shop import limits
from shop.api.errors import BodyTooLarge

MAX_BODY = limits.BODY_BYTES
"""Maximum bytes of a body. The shop's web server has the same limit; behind another server, only this limit applies."""

MOST_VALUES = 500
"""Maximum number of arrays and objects in a body. The body of an order has one object for each item.

Without this limit, a body of arrays within arrays would exhaust the stack of the code that validates the body.
"""


class JsonParser(BaseParser):
    """UTF-8 JSON of at most `MAX_BODY` bytes."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        body = stream.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise BodyTooLarge(f"The body is longer than {MAX_BODY} bytes.")
        if body.count(b"[") + body.count(b"{") > MOST_VALUES:
            raise ParseError(f"The JSON of the body has more than {MOST_VALUES} arrays and objects.")
        try:
            return msgspec.json.decode(body)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not valid JSON: {error}") from error
