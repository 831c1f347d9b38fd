"""A proxy between clients and a server that can drop a response, hang, or refuse connections."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.locking.support import Address, RemoteRecipe


class Proxy:
    """Forwards traffic between clients and the server at `server`."""

    def __init__(self, server: Address) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._flows = threading.Event()
        self._flows.set()
        self.host, self.port = self._listener.getsockname()
        self.open = True
        """Whether the proxy accepts connections."""
        self.lose: bytes | None = None
        """When a request contains these bytes, cut the connection instead of returning the response, once."""
        self.cuts = 0
        """How many responses were dropped."""
        threading.Thread(target=self._accept, daemon=True).start()

    def hang(self) -> None:
        """Accept connections but forward nothing."""
        self._flows.clear()

    def refuse(self) -> None:
        """Cut every connection, and accept no new one."""
        self.open = False
        self.cut()

    def restore(self) -> None:
        """Forward again, including the bytes that were held back."""
        self.open = True
        self._flows.set()

    def cut(self) -> None:
        """Cut every connection."""
        while self._ends:
            _end(self._ends.pop())

    def close(self) -> None:
        self.open = False
        self._flows.set()
        _end(self._listener)
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self.open:
                    client.close()
                    continue
                family = socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET
                server = socket.socket(family)
                try:
                    server.connect(self._server)
                except OSError:  # The server accepts no connection.
                    _end(client)
                    _end(server)
                    continue
                self._ends += (client, server)
                lost = threading.Event()
                for source, target in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pass, args=(source, target, source is client, lost), daemon=True
                    ).start()

    def _pass(self, source: socket.socket, target: socket.socket, requests: bool, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                if requests and self.lose is not None and self.lose in data:
                    self.lose = None
                    lost.set()
                if not requests and lost.is_set():
                    self.cuts += 1
                    break
                target.sendall(data)
        _end(source)
        _end(target)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


class Link:
    """Locks whose clients reach each server through a proxy."""

    def __init__(self, recipe: RemoteRecipe) -> None:
        self.proxies: list[Proxy] = []
        self.recipe = recipe.through(self._proxy)

    def _proxy(self, server: Address) -> tuple[str, int]:
        self.proxies.append(Proxy(server))
        return self.proxies[-1].host, self.proxies[-1].port

    def lose_the_answer(self, request: bytes) -> None:
        """Drop the server's response to the next request that contains `request`, once per proxy."""
        for proxy in self.proxies:
            proxy.lose = request

    @property
    def lost(self) -> int:
        """Return how many responses were dropped."""
        return sum(proxy.cuts for proxy in self.proxies)

    def hang(self) -> None:
        for proxy in self.proxies:
            proxy.hang()

    def refuse(self) -> None:
        for proxy in self.proxies:
            proxy.refuse()

    def restore(self) -> None:
        for proxy in self.proxies:
            proxy.restore()

    def close(self) -> None:
        """Close the clients first, then the proxies."""
        self.restore()
        self.recipe.close()
        for proxy in self.proxies:
            proxy.close()
