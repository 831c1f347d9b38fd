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
"""Maximum bytes of a body. The shop's web server has the same limit; behind another server, only this one applies."""


class JsonParser(BaseParser):
    """UTF-8 JSON of at most `MAX_BODY` bytes."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        body = stream.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise BodyTooLarge(f"The body is longer than {MAX_BODY} bytes.")
        try:
            return msgspec.json.decode(body)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not valid JSON: {error}") from error
