"""A proxy between the shop and a server that can cut connections in the middle of a call."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

Direction = Literal["request", "response"]
CHUNK = 65536  # bytes


class CuttableProxy:
    """Forwards a TCP port of the loopback interface to a server's Unix socket.

    While no server listens, the proxy closes new connections at once.
    """

    def __init__(self, server: Path) -> None:
        self.cuts = 0
        self._server = server
        self._left: dict[Direction, int] = {}
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        threading.Thread(target=asyncio.run, args=(self._serve(listener),), name="proxy", daemon=True).start()

    def cut_after(self, count: int, direction: Direction) -> None:
        """Forward `count` more bytes in one direction, then cut the connection that carries the next byte.

        The bytes of all connections count together.
        """
        self._left = {direction: count}

    def stop_cutting(self) -> None:
        """Cancel a cut that has not happened yet."""
        self._left = {}

    async def _serve(self, listener: socket.socket) -> None:
        async with await asyncio.start_server(self._connected, sock=listener) as server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_unix_connection(self._server)
        except OSError:
            writer.transport.abort()
            return
        try:
            requests = asyncio.ensure_future(self._forward(reader, to_server, "request"))
            responses = asyncio.ensure_future(self._forward(from_server, writer, "response"))
            _, other = await asyncio.wait({requests, responses}, return_when=asyncio.FIRST_COMPLETED)
            for task in other:
                task.cancel()
        finally:
            writer.transport.abort()
            to_server.transport.abort()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: Direction) -> None:
        """Copy bytes until the source ends or the connection is cut."""
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                left = self._left.get(direction)
                if left is not None and len(chunk) > left:
                    self._left = {}
                    sink.write(chunk[:left])
                    self.cuts += 1
                    return
                if left is not None:
                    self._left = {direction: left - len(chunk)}
                sink.write(chunk)
                await sink.drain()
