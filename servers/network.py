"""A network on one machine that can be cut: each member of a cluster reaches the others through its own proxy."""

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

HOST = "127.0.0.1"
CHUNK = 65536  # bytes
SOCKS, NO_PASSWORD, CONNECT, IPV4, NAME = 5, 0, 1, 1, 3  # RFC 1928
DONE, REFUSED = 0, 5
ANY_ADDRESS = bytes([IPV4, 0, 0, 0, 0, 0, 0])


class Network:
    """SOCKS 5 proxies on the loopback interface, one for each member. The port of a proxy tells which member connects.

    A cut network is silent, like a network without a cable: data that is sent gets no answer and no refusal.

    Args:
        ports: for each member, the ports at which it listens for the other members.
    """

    def __init__(self, ports: Sequence[Collection[int]]) -> None:
        self._member_at = {port: number for number, of_member in enumerate(ports) for port in of_member}
        self._isolated: frozenset[int] = frozenset()
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        listeners = [socket.create_server((HOST, 0)) for _ in ports]
        self.proxies: list[int] = [listener.getsockname()[1] for listener in listeners]
        """The port of each member's proxy."""
        self._run(self._serve(listeners))

    def isolate(self, member: int) -> None:
        """Cut a member off from all others. Clients still reach it.

        Args:
            member: number of the member, counted from 0.
        """
        self._run(self._set_isolated(self._isolated | {member}))

    @property
    def isolated(self) -> frozenset[int]:
        """The numbers of the members that are cut off."""
        return self._isolated

    def heal(self) -> None:
        """Let all members reach each other again, over new connections."""
        self._run(self._set_isolated(frozenset()))

    def close(self) -> None:
        """End all connections. Safe to call more than once."""
        if self._thread.is_alive():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self, job: Coroutine[Any, Any, None]) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(job, self._loop)
        done.result(10.0)

    async def _serve(self, listeners: Sequence[socket.socket]) -> None:
        self._servers = [
            await asyncio.start_server(self._connected_by(member), sock=listener)
            for member, listener in enumerate(listeners)
        ]

    def _connected_by(
        self, member: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Closing the network cancels this task. Suppress the error, because asyncio would log it.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._connect(member, reader, writer)
            writer.transport.abort()

        return connected

    async def _connect(self, member: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, methods = await reader.readexactly(2)
        await reader.readexactly(methods)
        writer.write(bytes([SOCKS, NO_PASSWORD]))
        port = await _target(reader)
        link = _Link(frozenset({member, self._member_at[port]}))
        self._links.add(link)
        try:
            self._update(link)
            await link.whole.wait()
            try:
                from_target, to_target = await asyncio.open_connection(HOST, port)
            except OSError:
                writer.write(bytes([SOCKS, REFUSED, 0]) + ANY_ADDRESS)
                await writer.drain()
                return
            link.ends = [writer, to_target]
            writer.write(bytes([SOCKS, DONE, 0]) + ANY_ADDRESS)
            await asyncio.wait(
                [
                    asyncio.ensure_future(link.forward(reader, to_target)),
                    asyncio.ensure_future(link.forward(from_target, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._links.discard(link)
            link.abort()

    def _update(self, link: "_Link") -> None:
        if link.members & self._isolated and len(link.members) > 1:
            link.whole.clear()
        else:
            link.whole.set()

    async def _set_isolated(self, isolated: frozenset[int]) -> None:
        self._isolated = isolated
        for link in list(self._links):
            was_cut = not link.whole.is_set()
            self._update(link)
            if was_cut and link.whole.is_set():
                link.abort()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Link:
    """A connection between two members.

    Attributes:
        whole: event that is set while the network carries the connection.
    """

    def __init__(self, members: frozenset[int]) -> None:
        self.members = members
        self.whole = asyncio.Event()
        self.ends: list[asyncio.StreamWriter] = []

    def abort(self) -> None:
        for end in self.ends:
            end.transport.abort()

    async def forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Copy data from the source to the sink until the source ends. Pause while the network is cut."""
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                await self.whole.wait()
                sink.write(chunk)
                await sink.drain()
            await self.whole.wait()  # a cut network does not carry the end of a connection, either


async def _target(reader: asyncio.StreamReader) -> int:
    """Read a SOCKS request and return its target port. The port alone identifies a member, so ignore the address."""
    _, command, _, kind = await reader.readexactly(4)
    if command != CONNECT:
        raise OSError("only connections are supported")
    if kind == NAME:
        (length,) = await reader.readexactly(1)
    else:
        length = 4 if kind == IPV4 else 16
    await reader.readexactly(length)
    return int.from_bytes(await reader.readexactly(2))
