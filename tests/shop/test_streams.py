"""Responses in pieces: a web process sends only a few at a time. A client that leaves in any way frees its place."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from shop import limits
from tests.shop.endless_stream import PATH
from tests.shop.web_server import connect, web_server
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

REQUEST = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
ENDLESS = "tests.shop.endless_stream:application"


def begin(port: int) -> socket.socket | None:
    """Ask for the page that never ends. Return the connection, or None if the server is busy."""
    client = connect(port, REQUEST)
    status = int(client.recv(100).split()[1])
    if status == 200:
        return client
    assert status == 503
    return client.close()


def reset(client: socket.socket) -> None:
    """Close the connection with a reset, as when the client's process is killed with unread data."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half_close(client: socket.socket) -> None:
    """Say that nothing more will be sent, and never read again."""
    client.shutdown(socket.SHUT_WR)


def stop_reading(client: socket.socket) -> None:
    """Stay, but read nothing more. The server cuts the connection after `limits.UNREAD` seconds."""


@pytest.fixture(scope="module")
def port(django_db_setup: None) -> Iterator[int]:
    with web_server(application=ENDLESS) as (port, _):
        yield port


@pytest.mark.parametrize("leave", [socket.socket.close, reset, half_close, stop_reading])
def test_a_process_sends_few_responses_in_pieces(port: int, leave: Callable[[socket.socket], None]) -> None:
    for _ in range(2):  # In the second round, all places are free again.
        first = [wait_for(partial(begin, port), "a free place") for _ in range(limits.STREAMS)]
        assert begin(port) is None
        for client in first:
            leave(client)


def test_without_the_limit_a_process_sends_many() -> None:
    """Negative control."""
    with web_server(application=ENDLESS, NO_LIMIT="1") as (port, _):
        clients = [begin(port) for _ in range(limits.STREAMS + 1)]
        assert None not in clients
        for client in clients:
            client and client.close()
