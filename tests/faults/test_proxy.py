"""The line that the rounds cut: it passes everything on, and ends where it was told to, in the middle of an answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.proxy import Line
from tests.waiting import PATIENCE, wait_for


class Echo:
    """A server on a Unix socket that answers with what it is told."""

    def __init__(self, path: Path) -> None:
        self.heard = b""
        self.ended = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            while said := client.recv(65536):
                self.heard += said
                client.sendall(said)
        self.ended += 1


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Echo]:
    server = Echo(tmp_path / "echo.sock")
    yield server
    server.close()


@pytest.fixture
def line(echo: Echo, tmp_path: Path) -> Line:
    return Line(tmp_path / "echo.sock")


def connect(line: Line) -> socket.socket:
    return socket.create_connection(("127.0.0.1", line.port), timeout=PATIENCE)


def hear(client: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer when the connection ends before."""
    heard = b""
    with suppress(ConnectionResetError):
        while len(heard) < count and (more := client.recv(count - len(heard))):
            heard += more
    return heard


def test_everything_is_passed_on_both_ways(line: Line, echo: Echo) -> None:
    said = bytes(range(256)) * 4000
    with connect(line) as client:
        threading.Thread(target=client.sendall, args=(said,)).start()
        assert hear(client, len(said)) == said
    wait_for(lambda: echo.ended == 1)
    assert line.cuts == 0


def test_a_cut_on_the_way_there_lets_no_more_than_its_bytes_through(line: Line, echo: Echo) -> None:
    with connect(line) as one, connect(line) as other:
        line.cut_after(7, "there")
        one.sendall(b"four")
        assert hear(one, 4) == b"four"
        other.sendall(b"five more")

        assert hear(other, 9) in (b"", b"fiv")  # its echo may be lost with the line
        wait_for(lambda: echo.ended == 1)
        assert (echo.heard, line.cuts) == (b"fourfiv", 1)
        one.sendall(b"still there")
        assert hear(one, 11) == b"still there"


def test_a_cut_on_the_way_back_loses_an_answer_to_what_was_done(line: Line, echo: Echo) -> None:
    with connect(line) as client:
        line.cut_after(3, "back")
        client.sendall(b"answer")

        assert hear(client, 6) == b"ans"
        wait_for(lambda: echo.ended == 1)
        assert (echo.heard, line.cuts) == (b"answer", 1)


def test_a_line_that_is_left_alone_again_is_not_cut(line: Line, echo: Echo) -> None:
    line.cut_after(0, "there")
    line.leave_alone()
    with connect(line) as client:
        client.sendall(b"said")
        assert hear(client, 4) == b"said"
    assert line.cuts == 0


def test_who_connects_while_no_server_listens_is_cut_off(line: Line, echo: Echo, tmp_path: Path) -> None:
    (tmp_path / "echo.sock").unlink()
    with connect(line) as client:
        assert hear(client, 1) == b""
