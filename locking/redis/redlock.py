"""Redlock: a lock on several independent servers, held by whoever a majority of them has granted it to.

Asking several servers is easy while all answer. What there is to think about is the one that does not:

- All nodes are asked at once. The requests go out on all connections before the first answer is read, and there is one
  time limit for all of them, so that nodes that hang cost `node_timeout` together and not each.
- A request without an answer may still be done, much later. So the node that owes the answer is sent the release right
  behind it, on the same connection, which keeps their order: a grant that comes late is gone at once. For the same
  reason every try has a token of its own, or the release of one try could take the grant of the next.
- A node that kept silent is asked again and again, but from then on nobody waits for it while the others can decide.

Connections are opened in threads, because names, TLS and greetings block and clients offer no other way. They are kept
for later, outside of the clients' pools, for as long as these pools live; an open one needs no thread.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, ref

import redis
from redis.exceptions import NoScriptError

from locking._ids import new_token
from locking.errors import LockUnavailable
from locking.lease import DRIFT_FACTOR, DRIFT_SECONDS, Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.redis.connection import SHORTEST, Call, Command, connect
from locking.redis.lock import milliseconds
from locking.renewal import watchdog

if TYPE_CHECKING:
    from redis import ConnectionPool, Redis

logger = logging.getLogger(__name__)

RESTS = 10
"""How many times as long as a try took who waits leaves the nodes alone, up to as many times `retry_delay`."""

ELECTIONS = 10
"""How often a try is repeated at once, because the votes were split and nobody holds the lock."""

OPENINGS = 8
"""How many connections to a node are opened at once: threads that all begin together only keep each other from it."""


class Redlock(Lock):
    """A lock on N independent primaries: granted, extended and released by N//2 + 1 of them.

    A grant is worth `ttl` less what asking took and less the drift allowance, `ttl * drift_factor + drift_seconds`.
    Nobody is woken: who waits asks again after a pause.

    It has no fence (`lease.fence` is None): N servers that do not know each other have no common count. So nothing
    stops a holder that was paused beyond its lease from writing, except its own `lease.check()` right before. Where a
    second holder does harm and the store cannot refuse it in some other way, take a lock that has a fence.

    What it survives: the crash of a holder; the loss of any minority of the nodes, whether they are gone, hang or
    answer errors; a node that answers after everybody has left.

    What it does not survive:

    - More nodes that forget than the grant can spare. One granted by k nodes still excludes others when k less the
      quorum of them have forgotten it: two of five when all granted it, none when only three did. A node forgets when
      it restarts without having synced to disk (`appendfsync always` does), and when it fails over to a replica that
      is behind. Keep such a node out for the longest TTL in use before it comes back. An extension gives a node that
      has forgotten nothing back.
    - A clock that is set forward on that many nodes: servers expire keys by the time of day. The drift allowance
      covers clocks that run unequally fast, not those that jump.
    - A holder that trusts its lease without checking it; see above.

    What a release cannot tell a node that is gone ends there with the TTL.

    Sources: S. Sanfilippo, "Distributed Locks with Redis",
    https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/; M. Kleppmann's objections to it, no fence
    and trust in clocks, https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html; Sanfilippo's
    answer, http://antirez.com/news/101.

    Args:
        clients: one for each node. The nodes must be independent of each other, no replicas and no cluster; an odd
            number, five as a rule. Of a client's own time limits and retries none applies.
        name: what is locked.
        ttl: seconds after which the lock is free again when its holder has died.
        drift_factor: how much faster than the holder's a server's clock may run, as a fraction.
        drift_seconds: seconds that expiry is imprecise by.
        node_timeout: seconds that all nodes together have to answer; far less than `ttl`, far more than a round trip.
        retries: how often to try again at most, while `timeout` allows; None: as often as it allows.
        retry_delay: seconds between two tries, on average: each pause is between half of it and one and a half, so
            that those who have split the votes do not meet again. Up to ten times as long while a try takes long, as
            when very many ask.
        renew: let the watchdog of the process extend the lease every third of the TTL while it is held.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: monotonic seconds; for tests.

    Raises:
        ValueError: there is no client, or one twice; the name is empty; a time or a count is not a usable one.
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        expires=True,
        renews=True,
        forks=True,
        survives_holder_crash=True,
        survives_node_loss=True,
        survives_restart=True,
    )

    def __init__(
        self,
        clients: Sequence[Redis],
        name: str,
        *,
        ttl: float = 10.0,
        drift_factor: float = DRIFT_FACTOR,
        drift_seconds: float = DRIFT_SECONDS,
        node_timeout: float = 0.2,
        retries: int | None = None,
        retry_delay: float = 0.1,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, ttl=ttl)
        pools = [client.connection_pool for client in clients]
        if not pools or len(set(pools)) < len(pools):
            raise ValueError(
                "Redlock needs clients, each of a server of its own: a node that is asked twice votes twice"
            )
        if not (drift_factor >= 0 and drift_seconds >= 0):
            raise ValueError(f"the drift allowance must not be negative: {drift_factor!r}, {drift_seconds!r}")
        self._drift_factor, self._drift_seconds = drift_factor, drift_seconds
        if not 0 < node_timeout < self._validity(ttl) < math.inf:
            raise ValueError(f"ttl must be finite and far longer than node_timeout and the drift, not {ttl!r}")
        if not retry_delay > 0 or (retries is not None and retries < 0):
            raise ValueError(f"retry_delay must be more than 0 and retries not negative: {retry_delay!r}, {retries!r}")
        self._clients = tuple(clients)  # a client that nobody refers to closes its pool
        self._nodes = tuple(map(node_of, pools))
        self._node_timeout = node_timeout
        self._retries = retries
        self._retry_delay = retry_delay
        self._renewer = RedlockRenewer(self._nodes, node_timeout) if renew else None
        self._on_lost = on_lost
        self._clock = clock
        self._key = f"redlock:{name}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`. None is also returned when the retries are used up. A try that has begun is finished.

        Contenders that come at once may split the votes; that is no refusal, and even who does not wait tries again.

        Raises:
            LockUnavailable: fewer than a quorum of the nodes have answered. It is not tried again.
            ValueError: `timeout` is negative, or given although `blocking` is False.
        """
        waits = wait_timeout(blocking, timeout)
        deadline = self._clock() + waits
        tries = 0
        while True:
            lease, tried = self._elect(deadline if waits else math.inf)
            if lease is not None:
                return lease
            tries += 1
            left = deadline - self._clock()
            if left <= 0 or (self._retries is not None and tries > self._retries):
                return None
            # Whoever waits asks once more when the time is nearly over: after a try that took long, pauses are as long.
            longest = max(0.0, left - tried)
            self._pause(min(self._delay(tried) * random.uniform(0.5, 1.5), longest))  # noqa: S311 - no secret
            if self._clock() >= deadline:
                return None

    def _delay(self, tried: float) -> float:
        """Return the seconds until the next try, on average, after one that took so many.

        It takes long when very many ask. If all came back as soon as ever, the holder's release would stand in line
        with them for longer and longer.
        """
        return max(self._retry_delay, RESTS * min(tried, self._retry_delay))

    def _elect(self, deadline: float) -> tuple[Lease | None, float]:
        """Try until it is granted to us or held by somebody else: when the votes were split, nobody holds it.

        Returns:
            The lease, if it was granted, and how many seconds the last try took.
        """
        for _ in range(ELECTIONS):
            begun = self._clock()
            lease, split = self._try()
            tried = self._clock() - begun
            if not split:
                return lease, tried
            # Those who have split the votes do not meet again if they come back at times as far apart as a try is long.
            pause = random.uniform(0, min(4 * tried, self._node_timeout))  # noqa: S311 - no secret
            if self._clock() + pause >= deadline:
                break
            time.sleep(pause)
        return None, tried

    def _try(self) -> tuple[Lease | None, bool]:
        """Ask all nodes once, and take back what was granted unless a quorum has granted it in time.

        Returns:
            The lease, if it was granted; otherwise whether the votes were split.
        """
        token = new_token()
        started = self._clock()
        try:
            ballot = self._ask(Call("redlock_acquire", (self._key,), (token, milliseconds(self.ttl))), undo=token)
            if ballot.verdict():
                lease = self._lease(token, started, ballot)
                if not lease.lost:
                    return lease, False
        except BaseException:
            # Interrupted, or out of threads: nobody will use what may have been granted.
            self._take_back(token, self._nodes)
            raise
        votes, quorum = ballot.votes(), majority(len(self._nodes))
        # A node that has refused has nothing to take back. One that has kept silent is told again.
        self._take_back(token, [node for node in self._nodes if votes.get(node, 1) == 1])
        if len(votes) < quorum:
            raise self._unavailable(ballot)
        rivals = Counter(vote for vote in votes.values() if vote != 1)
        return None, 0 < len(votes) - rivals.total() < quorum and max(rivals.values(), default=0) < quorum

    def _lease(self, token: str, started: float, ballot: Ballot) -> Lease:
        lease = RedlockLease(
            self,
            token,
            started=started,
            ttl=self.ttl,
            on_lost=self._on_lost,
            clock=self._clock,
            validity=self._validity,
            granted={node for node, vote in ballot.votes().items() if vote == 1},
        )
        if not lease.lost and (self._renewer is not None or self._on_lost is not None):
            watchdog.watch(lease, self._renewer)
        return lease

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _validity(self, ttl: float) -> float:
        """Return for how long, in seconds from the request, a grant of `ttl` seconds may be trusted."""
        return ttl * (1 - self._drift_factor) - self._drift_seconds

    def _extend(self, lease: Lease, ttl: float) -> bool:
        return self._decide(self._ask(self.extend_call(lease, ttl)))

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        ballot = self._ask(self._release_call(lease.token), undo=lease.token)
        verdict = ballot.verdict()
        if verdict is None or lease._unanswered:
            ours = cast(RedlockLease, lease).ours(ballot.votes(), majority(len(self._nodes)))
            if ours is None:
                raise self._unavailable(ballot)
            lease._unanswered = ours  # the lease says so once, although this try may have found nothing any more
        return verdict is True

    def _ask(self, call: Call, *, undo: str | None = None) -> Ballot:
        behind = () if undo is None else (self._release_call(undo),)
        ballot = Ballot(self._nodes, (call,), majority(len(self._nodes)), undo=behind)
        ballot.hold(self._node_timeout)
        return ballot

    def _take_back(self, token: str, nodes: Sequence[Node]) -> None:
        """Release what nodes may have granted. There is nothing to decide, so no silent node is waited for."""
        calls = (self._release_call(token),)
        Ballot(nodes, calls, 0, undo=calls).hold(self._node_timeout)

    def _decide(self, ballot: Ballot) -> bool:
        """Return what the nodes have decided.

        Raises:
            LockUnavailable: too few have answered to decide anything.
        """
        verdict = ballot.verdict()
        if verdict is None:
            raise self._unavailable(ballot)
        return verdict

    def _unavailable(self, ballot: Ballot) -> LockUnavailable:
        reasons = "; ".join(f"node {self._nodes.index(node) + 1}: {reason}" for node, reason in ballot.reasons())
        return LockUnavailable(
            f"Only {len(ballot.votes())} of {len(self._nodes)} nodes have answered for lock {self.name!r}, which is "
            f"too few to decide ({reasons}). Try again; if that does not help, see whether these nodes run, are "
            f"writable, and answer within node_timeout, {self._node_timeout} s."
        )

    def extend_call(self, lease: Lease, ttl: float) -> Call:
        """Return the call that keeps the lock on a node for `ttl` seconds from now. For the renewer."""
        return Call("redlock_extend", (self._key,), (lease.token, milliseconds(ttl)))

    def _release_call(self, token: str) -> Call:
        return Call("redlock_release", (self._key,), (token,))


class RedlockLease(Lease):
    """A lease that counts the tries to release it together, when the first one was not answered by enough nodes.

    A no to a later try alone decides nothing: the node may have said yes to an earlier one, or that one was not heard.

    Args:
        granted: the nodes that have granted it. From all others it was taken back, or they never heard of it.
    """

    __slots__ = ("_freed", "_granted")

    def __init__(self, *args: Any, granted: set[Node], **options: Any) -> None:
        super().__init__(*args, **options)
        self._granted = granted
        self._freed: set[Node] = set()

    def ours(self, votes: dict[Node, Any], quorum: int) -> bool | None:
        """Return whether a quorum still had the lease when it was first released, or None while that is open.

        A node that answers no after it has left an earlier try unanswered counts as freed by that one.

        Args:
            votes: what the nodes have answered to one more try.
            quorum: how many nodes decide.
        """
        with self._mutex:
            for node, vote in votes.items():
                if vote == 1 or (self._unanswered and node in self._granted):
                    self._freed.add(node)
                else:
                    self._granted.discard(node)  # it has forgotten
            if len(self._freed) >= quorum:
                return True
            return False if len(self._freed | self._granted) < quorum else None


@dataclass(frozen=True)
class RedlockRenewer:
    """Extends all leases on the same nodes in one round trip. See `locking.renewal.Renewer`.

    Attributes:
        nodes: all nodes of the leases.
        node_timeout: seconds that they together have to answer.
    """

    nodes: tuple[Node, ...]
    node_timeout: float

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """See `Renewer.renew`."""
        calls = [cast(Redlock, lease._lock).extend_call(lease, lease.ttl) for lease in leases]
        ballot = Ballot(self.nodes, calls, majority(len(self.nodes)))
        ballot.hold(min(seconds, self.node_timeout))
        verdicts = [ballot.verdict(index) for index in range(len(calls))]
        if None in verdicts:
            reasons = "; ".join(str(reason) for _, reason in ballot.reasons())
            logger.warning("%d leases were not renewed (%s); it is tried again.", verdicts.count(None), reasons)
        return verdicts

    def close(self) -> None:
        """Nothing is the renewer's own: it uses the connections that everybody uses."""


def majority(nodes: int) -> int:
    """Return how many of so many nodes decide: any two majorities have a node in common."""
    return nodes // 2 + 1


class Ballot:
    """One vote of all nodes on some calls. Each call answers 1, or something else for no.

    Args:
        nodes: who is asked.
        calls: what each node runs, in one round trip.
        quorum: how many nodes that answer 1 decide a call.
        undo: what a node is sent that has not answered in time: behind the calls, or when it can be reached at last.
    """

    def __init__(self, nodes: Sequence[Node], calls: Sequence[Call], quorum: int, *, undo: Sequence[Call] = ()) -> None:
        self._nodes = nodes
        self._calls = calls
        self._quorum = quorum
        self._undo = undo
        self._answers: dict[Node, list[Any]] = {}
        self._errors: dict[Node, Exception] = {}
        self._connections: dict[Node, Any] = {}
        self._openings: dict[Future[None], Node] = {}

    def votes(self, call: int = 0) -> dict[Node, Any]:
        """Return what each node has answered to a call. Silence and errors are no votes."""
        answered = {node: answers[call] for node, answers in self._answers.items()}
        return {node: answer for node, answer in answered.items() if not isinstance(answer, Exception)}

    def verdict(self, call: int = 0) -> bool | None:
        """Return what a quorum has answered to a call: False when none can answer 1 any more, None when undecided."""
        votes = list(self.votes(call).values())
        if votes.count(1) >= self._quorum:
            return True
        return False if len(votes) - votes.count(1) > len(self._nodes) - self._quorum else None

    def reasons(self) -> Iterable[tuple[Node, Exception]]:
        """Yield the nodes that did not vote on all calls, and why."""
        for node in self._nodes:
            errors = [answer for answer in self._answers.get(node, ()) if isinstance(answer, Exception)]
            if errors or node not in self._answers:
                yield node, errors[0] if errors else self._errors.get(node, redis.TimeoutError("no answer in time"))

    def hold(self, seconds: float) -> None:
        """Ask all nodes, and return when each has answered or `seconds` are over.

        Those that last kept silent are asked too, but are waited for only while the others leave a call undecided.
        """
        until = time.monotonic() + seconds
        awake, silent = [[node for node in self._nodes if node.silent is kept] for kept in (False, True)]
        try:
            for node in self._nodes:
                self._ask(node, seconds)
            self._hear(awake, seconds, until)
            if any(self.verdict(call) is None for call in range(len(self._calls))):
                self._hear(silent, seconds, until)
        finally:
            for node, connection in self._connections.items():
                if node in self._answers:
                    node.put(connection)
                else:
                    node.part(connection, self._undo)
            for opening, node in self._openings.items():
                if node in awake:  # a silent one may have been reached meanwhile: then the next vote waits for it
                    node.silent = True
                if self._undo:
                    opening.add_done_callback(partial(node.tell, self._undo, seconds))

    def _ask(self, node: Node, seconds: float) -> None:
        """Send the calls, or begin to open a connection for them."""
        connection = node.take()
        if connection is None:
            self._openings[node.open(seconds)] = node
        else:
            self._connections[node] = connection
            self._send(node, [call.by_digest for call in self._calls])

    def _hear(self, nodes: Sequence[Node], seconds: float, until: float) -> None:
        """Wait for the connections to some nodes, and then for their answers."""
        while openings := [opening for opening, node in self._openings.items() if node in nodes]:
            opened = wait(openings, max(until - time.monotonic(), 0), FIRST_COMPLETED).done
            if not opened:
                break
            for opening in opened:
                node = self._openings.pop(opening)
                error = opening.exception()
                if error is None:
                    self._ask(node, seconds)  # and open one more if somebody was quicker to take it
                else:
                    self._errors[node] = cast(Exception, error)
        for node in nodes:
            self._read(node, until)
        # Those that have lost their scripts are sent the whole text, again all at once. To repeat a call is harmless.
        forgetful = [node for node in nodes if any(isinstance(a, NoScriptError) for a in self._answers.get(node, ()))]
        for node in forgetful:
            del self._answers[node]
            self._send(node, [call.in_full for call in self._calls])
        for node in forgetful:
            self._read(node, until)

    def _send(self, node: Node, commands: Sequence[Command]) -> None:
        try:
            send(self._connections[node], commands)
        except redis.RedisError as error:
            self._errors[node] = error

    def _read(self, node: Node, until: float) -> None:
        if node not in self._connections or node in self._errors:
            return
        try:
            self._answers[node] = read(self._connections[node], len(self._calls), until)
            node.silent = False
        except redis.RedisError as error:
            self._errors[node] = error


class Node:
    """One server: the open connections to it that nobody uses at the moment, and whether it last kept silent.

    Args:
        pool: says how to connect. It is not kept alive.

    Attributes:
        silent: it could not be reached, or did not answer in time, and has not answered since.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = ref(pool)
        self._forget()

    def _forget(self) -> None:
        self.silent = False
        self._idle: list[Any] = []
        self._opening: Future[None] | None = None
        self._turns = threading.BoundedSemaphore(OPENINGS)
        self._pid = os.getpid()

    def take(self) -> Any:
        """Return an open connection that owes no answer, or None when there is none at hand."""
        if self._pid != os.getpid():
            self._forget()  # after a fork: these connections are the parent's
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            with suppress(redis.RedisError):
                if not connection.can_read():
                    return connection
            connection.disconnect()
        return None

    def put(self, connection: Any) -> None:
        """Take back a connection that owes no answer."""
        self._idle.append(connection)

    def open(self, seconds: float) -> Future[None]:
        """Begin to open one more connection, which `take` finds then. A silent node is tried once at a time.

        Args:
            seconds: how long the server may take at each step.

        Raises:
            RuntimeError: out of threads.
        """
        if self.silent and self._opening is not None and not self._opening.done():
            return self._opening
        opening = self._opening = Future()
        arguments = (opening, seconds, self.silent)
        try:
            threading.Thread(target=self._open, args=arguments, name="redlock-open", daemon=True).start()
        except BaseException:
            self._opening = None  # without a thread nobody ends it, and a silent node would never be tried again
            raise
        return opening

    def _open(self, opening: Future[None], seconds: float, probe: bool) -> None:  # noqa: FBT001 - a thread's
        try:
            self.put(self._connect(seconds, probe))
        except Exception as error:
            self.silent = True
            opening.set_exception(error)
        else:
            self.silent = False
            opening.set_result(None)

    def _connect(self, seconds: float, probe: bool) -> Any:  # noqa: FBT001 - see above
        """Return a new connection, opened when it is our turn, and not to a node known as silent unless to probe it.

        Raises:
            redis.exceptions.RedisError: no connection, each step within `seconds`.
        """
        pool = self._pool()
        if pool is None:
            raise redis.ConnectionError("the client is gone")
        with self._turns:
            if self.silent and not probe:
                raise redis.TimeoutError("no answer in time, not even to those who came before")
            return connect(pool, seconds)

    def part(self, connection: Any, calls: Sequence[Call]) -> None:
        """Send calls behind the request that is still unanswered, and close the connection: nobody waits any longer.

        What was sent is still delivered to a server that is merely slow, and run in this order.
        """
        self.silent = True
        try:
            if calls:
                with suppress(redis.RedisError):
                    send(connection, [call.in_full for call in calls])
        finally:
            connection.disconnect()

    def tell(self, calls: Sequence[Call], seconds: float, opening: Future[None]) -> None:
        """Run calls now that the node can be reached, for somebody who has not waited for that.

        Args:
            calls: what to run.
            seconds: for each step of opening a connection if somebody was quicker to take that one, and to answer.
            opening: whether the node can be reached.
        """
        if opening.exception() is not None:
            return
        connection = self.take()
        try:
            if connection is None:
                connection = self._connect(seconds, probe=True)  # never put where it could be taken before it has told
            send(connection, [call.in_full for call in calls])
            read(connection, len(calls), time.monotonic() + seconds)
        except redis.RedisError:
            if connection is not None:
                connection.disconnect()
        else:
            self.put(connection)


_nodes: WeakKeyDictionary[ConnectionPool, Node] = WeakKeyDictionary()


def node_of(pool: ConnectionPool) -> Node:
    """Return the node of a client's pool: the same one for all locks, so that they share its connections."""
    return _nodes.setdefault(pool, Node(pool))


def send(connection: Any, commands: Sequence[Command]) -> None:
    """Send commands without waiting for an answer, not even for that of a health check."""
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)


def read(connection: Any, count: int, until: float) -> list[Any]:
    """Read so many answers until a monotonic time; an exception where the server answered with an error.

    Raises:
        redis.exceptions.RedisError: not all answers in time. The connection is left open.
    """
    answers: list[Any] = []
    for _ in range(count):
        limit = max(until - time.monotonic(), SHORTEST)
        try:
            answers.append(connection.read_response(timeout=limit, disconnect_on_error=False))
        except redis.ResponseError as error:
            answers.append(error)
    return answers
