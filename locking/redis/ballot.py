"""Ballot: ask all nodes of a Redlock at the same time, and count their votes. A node is one of its servers.

- All requests are sent before the first answer is read, and one time limit covers all nodes. Nodes that hang therefore
  cost `node_timeout` only once.
- A request without an answer may still take effect, much later. The call that undoes it is sent right behind it on the
  same connection. The node runs the two in this order, so a late grant is released immediately.
- A node that did not answer is asked again in every ballot. The ballot waits for it only while the other nodes cannot
  decide.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, cast

import redis
from redis.exceptions import NoScriptError, ReadOnlyError

from locking.redis.connection import Command, ScriptCall
from locking.redis.nodes import RedlockNode, read, send


class Ballot:
    """One vote of all nodes on one or more script calls.

    The answer 1 to a call counts as yes, and any other answer as no.

    Args:
        nodes: the nodes to ask.
        calls: what each node runs, in one round trip.
        quorum: number of nodes that must say yes for the verdict to be yes.
        undo: calls that undo `calls` on a node that has not answered in time. They follow the request on the same
            connection, which is opened again if it is broken. If a connection to the node is still being opened, they
            are sent once it is open.
    """

    def __init__(
        self, nodes: Sequence[RedlockNode], calls: Sequence[ScriptCall], quorum: int, *, undo: Sequence[ScriptCall] = ()
    ) -> None:
        self._nodes = nodes
        self._calls = calls
        self._quorum = quorum
        self._undo = undo
        self._answers: dict[RedlockNode, list[Any]] = {}
        self._errors: dict[RedlockNode, Exception] = {}
        self._connections: dict[RedlockNode, Any] = {}
        self._openings: dict[Future[None], RedlockNode] = {}

    def votes(self, call: int = 0) -> dict[RedlockNode, Any]:
        """Return the answer of each node to the call with this index. Errors and missing answers are left out."""
        answered = {node: answers[call] for node, answers in self._answers.items()}
        return {node: answer for node, answer in answered.items() if not isinstance(answer, Exception)}

    def verdict(self, call: int = 0) -> bool | None:
        """Return True if a quorum said yes to the call, False if a quorum is impossible, None if neither is certain."""
        votes = list(self.votes(call).values())
        if votes.count(1) >= self._quorum:
            return True
        return False if len(votes) - votes.count(1) > len(self._nodes) - self._quorum else None

    def reasons(self) -> Iterable[tuple[RedlockNode, Exception]]:
        """Yield each node that did not answer all calls, with the error that explains why."""
        for node in self._nodes:
            errors = [answer for answer in self._answers.get(node, ()) if isinstance(answer, Exception)]
            if errors or node not in self._answers:
                yield node, errors[0] if errors else self._errors.get(node, redis.TimeoutError("no answer in time"))

    def hold(self, seconds: float) -> None:
        """Ask all nodes, and return when each has answered or `seconds` are over.

        Nodes that did not answer last time (`silent`) are asked, too. The ballot waits for their answers only if the
        other nodes have not decided every call.
        """
        until = time.monotonic() + seconds
        responsive, silent = [[node for node in self._nodes if node.silent is kept] for kept in (False, True)]
        try:
            for node in self._nodes:
                self._ask(node, seconds)
            self._hear(responsive, seconds, until)
            if any(self.verdict(call) is None for call in range(len(self._calls))):
                self._hear(silent, seconds, until)
        finally:
            for node, connection in self._connections.items():
                if node not in self._answers:
                    node.abandon(connection, self._undo)
                elif any(isinstance(answer, ReadOnlyError) for answer in self._answers[node]):
                    connection.disconnect()  # the server is no longer a primary: connect again next time
                    node.drop_idle()
                else:
                    node.put(connection)
            for opening, node in self._openings.items():
                if node in responsive:  # a node that was silent before may just have become reachable
                    node.silent = True
                if self._undo:
                    opening.add_done_callback(partial(node.run_late, self._undo, seconds))

    def _ask(self, node: RedlockNode, seconds: float) -> None:
        """Send the calls to a node, or start to open a connection to it."""
        connection = node.take_idle()
        if connection is None:
            self._openings[node.open(seconds)] = node
        else:
            self._connections[node] = connection
            self._send(node, [call.by_digest for call in self._calls])

    def _hear(self, nodes: Sequence[RedlockNode], seconds: float, until: float) -> None:
        """Wait for the connections to `nodes`, and then for their answers."""
        while openings := [opening for opening, node in self._openings.items() if node in nodes]:
            opened = wait(openings, max(until - time.monotonic(), 0), FIRST_COMPLETED).done
            if not opened:
                break
            for opening in opened:
                node = self._openings.pop(opening)
                error = opening.exception()
                if error is None:
                    self._ask(node, seconds)  # opens one more connection if another thread took this one
                else:
                    self._errors[node] = cast(Exception, error)
        for node in nodes:
            self._read(node, until)
        # Send the full scripts to the nodes that have lost them. Send to all nodes before reading the first answer, so
        # that the nodes work at the same time. Repeating a call is harmless.
        without_scripts = [
            node for node in nodes if any(isinstance(a, NoScriptError) for a in self._answers.get(node, ()))
        ]
        for node in without_scripts:
            del self._answers[node]
            self._send(node, [call.in_full for call in self._calls])
        for node in without_scripts:
            self._read(node, until)

    def _send(self, node: RedlockNode, commands: Sequence[Command]) -> None:
        try:
            send(self._connections[node], commands)
        except redis.RedisError as error:
            self._errors[node] = error

    def _read(self, node: RedlockNode, until: float) -> None:
        if node not in self._connections or node in self._errors:
            return
        try:
            self._answers[node] = read(self._connections[node], len(self._calls), until)
            node.silent = False
        except redis.RedisError as error:
            self._errors[node] = error
