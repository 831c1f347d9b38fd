"""Reads JSON bodies, fast and with a bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import orjson
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from shop.api.problems import BodyTooLarge

# The largest cart is far below. Without a bound of its own the framework reads whatever is sent into memory.
MAX_BODY = 64 * 1024


class Json(BaseParser):
    """UTF-8 JSON of at most `MAX_BODY` bytes."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        body = stream.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise BodyTooLarge(f"A body has at most {MAX_BODY} bytes.")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ParseError(f"The body is not JSON: {error}") from error
