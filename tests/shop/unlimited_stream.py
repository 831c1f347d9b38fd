"""The WSGI application of the web server, with responses that wait in memory until a slow client has read them."""

from __future__ import annotations

from typing import Any

from shop.runtime import streaming
from shop.runtime.wsgi import application

__all__ = ["application"]


def send(proto: Any, status: int, headers: list[tuple[str, str]], response: Any) -> None:
    transport = proto.response_stream(status, headers)
    for piece in response:
        transport.send_bytes(piece)
    response.close()


streaming.send = send
