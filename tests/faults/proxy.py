"""A line between the shop and one of its servers, which can be cut in the middle of a call."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

Way = Literal["there", "back"]
CHUNK = 65536  # bytes


class Line:
    """Passes on what comes to a TCP port of the loopback to a server's Unix socket, and back.

    Where no server listens, whoever connects is cut off at once.
    """

    def __init__(self, server: Path) -> None:
        self.cuts = 0
        self._server = server
        self._left: dict[Way, int] = {}
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        threading.Thread(target=asyncio.run, args=(self._serve(listener),), name="line", daemon=True).start()

    def cut_after(self, count: int, way: Way) -> None:
        """Let so many more bytes pass this way, over all connections, and cut the one that carries the next."""
        self._left = {way: count}

    def leave_alone(self) -> None:
        """Cut nothing that is not cut yet."""
        self._left = {}

    async def _serve(self, listener: socket.socket) -> None:
        async with await asyncio.start_server(self._connected, sock=listener) as server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, questions = await asyncio.open_unix_connection(self._server)
        except OSError:
            writer.transport.abort()
            return
        try:
            there = asyncio.ensure_future(self._pass(reader, questions, "there"))
            back = asyncio.ensure_future(self._pass(answers, writer, "back"))
            _, other = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            for task in other:
                task.cancel()
        finally:
            writer.transport.abort()
            questions.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Way) -> None:
        """Return when the source has ended, or the line is cut."""
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                left = self._left.get(way)
                if left is not None and len(chunk) > left:
                    self._left = {}
                    sink.write(chunk[:left])
                    self.cuts += 1
                    return
                if left is not None:
                    self._left = {way: left - len(chunk)}
                sink.write(chunk)
                await sink.drain()
