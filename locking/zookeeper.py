"""ZooKeeperLock: whoever wants the lock stands in line with a node of its own, and the first in line holds it.

    /locks/<name>                       the line: a container, which the server removes when it has been empty for long
    /locks/<name>/<token>-<sequence>    one who holds or waits; gone with its session

The token comes first in a node's name, so that a create whose answer was lost is found again. Each looks only at the
one before it, so a release wakes one waiter and not all. That one may have been a waiter too, which died: so who is
woken looks again and believes nothing.

The line needs ZooKeeper 3.5.3 or later. kazoo speaks every request used here but two, which are in this file: the
container, and the question for how long the session lasts.

Source: "ZooKeeper Recipes and Solutions, Locks", https://zookeeper.apache.org/doc/r3.8.0/recipes.html#sc_recipes_Locks
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from kazoo.exceptions import ConnectionLoss, KazooException, NodeExistsError, NoNodeError, SessionExpiredError
from kazoo.protocol.serialization import Close, Connect, Create, int_struct
from kazoo.protocol.states import KazooState
from kazoo.security import OPEN_ACL_UNSAFE

from locking._ids import new_token, owner_label
from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.renewal import watchdog

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult
    from kazoo.protocol.states import WatchedEvent

logger = logging.getLogger(__name__)

ROOT = "/locks"
SEQUENCE_DIGITS = 10

SHORTEST_ANSWER = 0.001
"""Seconds: a socket takes 0 for "do not block"."""

SHORTEST_PATIENCE = 1.0
"""Seconds. A server may take so long to answer although the caller's timeout, which is for the lock, is shorter."""


class ZooKeeperLock(Lock):
    """A lock in ZooKeeper: first come, first served, fenced, and free soon after its holder's session has ended.

    The TTL of a lease is the session timeout that client and server have agreed on: a holder that dies is out of the
    line after that time. It is no length of work, as a living client keeps its session. The watchdog asks for the node
    of each lease every third of it, so a lease is over, whatever kazoo has noticed, when no answer came for so long.

    The fence is the node's creation id (czxid), a counter of the whole ensemble: it grows as long as the ensemble keeps
    its data. Check it where you write. It covers a paused holder, and one more thing: the leader of an ensemble hears
    of a session's life with a delay, so a client whose server loses the leader may trust its lease for a moment longer
    than the leader keeps the session.

    What is left of a lock that nobody wants is its empty container, which the server removes within about a minute.
    After 2³¹ changes of one line that was never empty for so long its sequence overflows, and the order is lost.

    Args:
        client: a started client, which any number of locks may share. A path after its hosts (chroot) is a namespace of
            locks. kazoo's threads do not survive a fork: make a client in each process.
        name: what is locked: any text.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: monotonic seconds; for tests.

    Raises:
        ValueError: the name is empty.
    """

    capabilities = Capabilities(
        across_processes=True,
        across_machines=True,
        fenced=True,
        fair=True,
        renews=True,
        quiet_wait=True,
        survives_holder_crash=True,
        survives_restart=True,
    )

    def __init__(
        self,
        client: KazooClient,
        name: str,
        *,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # What the client asks for; the server may agree to less or more, which the first acquire finds out.
        super().__init__(name, ttl=client._session_timeout / 1000)
        self._client = client
        self._on_lost = on_lost
        self._clock = clock
        self._renewer = ZooKeeperRenewer(client)
        # quote() leaves the dot, and a path may have no part "." or "..".
        self._line = f"{ROOT}/{quote(name, safe='', errors='surrogatepass').replace('.', '%2E')}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """See `Lock.acquire`. A connection that is cut is waited for as long as the session lives, however short
        `timeout` is, but a second at least. A session that ends takes the place in line with it: LockUnavailable.
        One that ended before is followed by the client's next one, which is waited for likewise. So is the answer to
        the first acquire through a client, whichever thread's question it is to.
        """
        deadline = self._clock() + wait_timeout(blocking, timeout)
        session = ZooKeeperSession.of(self._client, self.name, self._limit(deadline))
        self.ttl = session.timeout
        token = new_token()
        try:
            lease = self._queue(session, token, deadline)
        except BaseException:
            # Interrupted, or without an answer: nobody will use the place, and the session may live for long.
            abandon(self._client, self._line, token).wait(SHORTEST_PATIENCE)
            raise
        if lease is None:
            abandon(self._client, self._line, token).wait(SHORTEST_PATIENCE)
        return lease

    def _queue(self, session: ZooKeeperSession, token: str, deadline: float) -> Lease | None:
        """Stand in line until it is our turn, or until `deadline`."""
        while True:
            number = session.number
            try:
                node, fence = self._enter(token, deadline)
                break
            except LockUnavailable as error:
                if type(error.__cause__) is not SessionExpiredError or not self._reconnected(deadline):
                    raise
                logger.info("Asking for lock %r begins anew: the session has ended, and no place with it.", self.name)
        while True:
            started = self._clock()
            try:
                line = self._look(deadline)
                if node not in line:
                    raise LockUnavailable(
                        f"The place in line for lock {self.name!r} is lost, and its session. Try again."
                    )
                place = line.index(node)
                if place == 0:
                    return self._granted(session, number, node, fence, started)
                left = deadline - self._clock()
                if left <= 0:
                    return None
                self._sleep(session, line[place - 1], deadline)
            except ConnectionLoss:
                logger.info("The wait for lock %r was cut; the place in line is looked for.", self.name)

    def _enter(self, token: str, deadline: float) -> tuple[str, int]:
        """Return the name of our node and its creation id, whether it is made now or was by an unanswered request."""
        sent = False
        while True:
            try:
                if sent and (found := self._find(token, deadline)):
                    return found
                sent = True
                path, stat = self._answer(
                    self._client.create_async(
                        f"{self._line}/{token}-",
                        owner_label().encode(),
                        ephemeral=True,
                        sequence=True,
                        include_data=True,
                    ),
                    deadline,
                )
                return path.rpartition("/")[2], stat.czxid
            except NoNodeError:
                sent = False
                self._make_line(deadline)
            except ConnectionLoss:
                logger.info("Asking for lock %r was cut; the answer is looked for.", self.name)

    def _reconnected(self, deadline: float) -> bool:
        """Wait until the client has a session again."""
        return bool(self._client._live.wait(self._limit(deadline)))

    def _limit(self, deadline: float) -> float:
        """Return for how many seconds the server may owe us an answer."""
        return min(self.ttl, max(deadline - self._clock(), SHORTEST_PATIENCE))

    def _find(self, token: str, deadline: float) -> tuple[str, int] | None:
        for node in self._look(deadline):
            if node.startswith(token):
                stat = self._answer(self._client.exists_async(f"{self._line}/{node}"), deadline)
                return (node, stat.czxid) if stat else None
        return None

    def _look(self, deadline: float) -> list[str]:
        """Return the nodes in line, the first one first.

        A server answers from what it knows, which may be old: the sync before makes it catch up with the leader, who
        refuses it to a session that has ended. The server runs both in this order, so it costs no round trip.
        """
        caught_up = self._client.sync_async(self._line)
        nodes = self._client.get_children_async(self._line)
        self._answer(caught_up, deadline)
        try:
            return sorted(self._answer(nodes, deadline), key=lambda node: node[-SEQUENCE_DIGITS:])
        except NoNodeError:
            return []

    def _sleep(self, session: ZooKeeperSession, before: str, deadline: float) -> None:
        """Sleep until the node before ours is gone, or until `deadline`. Woken does not mean that it is our turn."""
        path = f"{self._line}/{before}"
        bell = self._client.handler.event_object()
        # A watch comes for sure on the connection that it was set on: until that is another one, nothing is asked.
        connection = self._client._connection._socket
        with session.ringing(bell, path):
            try:
                # Not exists(): on a node that is gone it leaves a watch for its return, which never comes.
                self._answer(self._client.get_async(path, session.ring), deadline)
            except NoNodeError:
                return
            while not bell.wait(max(0.0, min(deadline - self._clock(), session.timeout))):
                same = self._client.connected and self._client._connection._socket is connection
                if self._clock() >= deadline or not same:
                    return

    def _make_line(self, deadline: float) -> None:
        made = self._client.handler.async_result()
        acl = self._client.default_acl or OPEN_ACL_UNSAFE
        try:
            self._answer(self._client.ensure_path_async(ROOT), deadline)
            self._client._call(CreateContainer(f"{self._client.chroot}{self._line}", b"", acl, CONTAINER), made)
            self._answer(made, deadline)
        except (NodeExistsError, ConnectionLoss):
            return  # when it was cut, the next try says whether it is there
        except NoNodeError as error:
            raise LockUnavailable(f"The client's chroot {self._client.chroot!r} does not exist: create it.") from error

    def _granted(self, session: ZooKeeperSession, number: int, node: str, fence: int, started: float) -> Lease:
        lease = ZooKeeperLease(
            self,
            node.rpartition("-")[0],
            started=started,
            ttl=session.timeout,
            fence=fence,
            on_lost=self._on_lost,
            clock=self._clock,
            session=session,
            number=number,
            path=f"{self._line}/{node}",
        )
        # A lease that nobody refers to any more would keep the lock for as long as the client lives.
        lease.leave = weakref.finalize(lease, abandon, self._client, self._line, lease.token)
        lease.leave.atexit = False
        watchdog.watch(lease, self._renewer)
        return lease

    def _extend(self, lease: Lease, ttl: float) -> bool:
        if ttl > lease.ttl:
            raise ValueError(f"a ZooKeeper lease lasts for the session timeout, {lease.ttl} s, not for {ttl} s")
        ours = self._renewer.renew([lease], max(lease.remaining(), SHORTEST_PATIENCE))[0]
        if ours is None:
            raise LockUnavailable(f"ZooKeeper did not answer for lock {self.name!r}. Try again while the lease lasts.")
        return ours

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        mine = cast(ZooKeeperLease, lease)
        deadline = self._clock() + lease.ttl
        found = cut = False
        try:
            while not found:
                try:
                    self._answer(self._client.delete_async(mine.path), deadline)
                    found = True
                except ConnectionLoss:
                    cut = True
        except NoNodeError:
            found = cut  # the request that was cut has done it
        except LockUnavailable as error:
            if type(error.__cause__) is not SessionExpiredError:  # which is the root of other errors, too
                # The connection may come back, and the node would stay for as long as the session lives.
                abandon(self._client, self._line, lease.token)
                raise LockUnavailable(
                    f"ZooKeeper did not confirm the release of lock {self.name!r}. It is freed as soon as the server "
                    "can be reached, or with the session. To be told, release again."
                ) from error
        mine.leave.detach()
        return found

    def _answer(self, result: IAsyncResult, deadline: float) -> Any:
        """Return the answer to a request.

        Raises:
            NoNodeError, NodeExistsError: as answered.
            ConnectionLoss: cut, and perhaps done.
            LockUnavailable: no answer in time, or the server refuses; perhaps done.
        """
        try:
            return result.get(timeout=self._limit(deadline))
        except (NoNodeError, NodeExistsError, ConnectionLoss):
            raise
        except (KazooException, self._client.handler.timeout_exception) as error:
            raise LockUnavailable(
                f"ZooKeeper gave no answer for lock {self.name!r} ({type(error).__name__}). Try again; if that does "
                "not help, see whether the server runs and the client is started."
            ) from error


class ZooKeeperLease(Lease):
    """A lease that also ends with the session, and knows its node.

    Args:
        session: of the client, and `number` what it was numbered at the grant.
        path: of the node.
    """

    __slots__ = ("_number", "_session", "leave", "path")

    leave: weakref.finalize[..., Lease]

    def __init__(self, *args: Any, session: ZooKeeperSession, number: int, path: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._session = session
        self._number = number
        self.path = path

    def _ended(self) -> bool:
        return self._session.number != self._number or super()._ended()


class ZooKeeperSession:
    """What is known of a client's session, once for all locks on it.

    Attributes:
        timeout: seconds after which the server ends the session of a client that it does not hear of.
        number: how many sessions of this client have ended.
    """

    def __init__(self, client: KazooClient, seconds: float) -> None:
        self.timeout = negotiated(client, seconds)
        self.number = 0
        self._pid = os.getpid()
        self._bells: dict[Any, str] = {}
        client.add_listener(self._changed)

    @classmethod
    def of(cls, client: KazooClient, lock: str, seconds: float) -> ZooKeeperSession:
        """Return the session of a client. The first time, the server is asked, and has so many seconds to answer.

        Raises:
            LockUnavailable: the client has no connection and never had one, the server did not answer in time, or the
                client is the parent's of a forked process.
        """
        session = _sessions.get(client)
        try:
            if session is None:
                session = cls._met(client, seconds)
        except (OSError, KazooException, client.handler.timeout_exception, AttributeError) as error:
            raise LockUnavailable(
                f"No ZooKeeper to ask for lock {lock!r} ({error}). Start the client, see whether the server runs, and "
                "try again."
            ) from error
        if session._pid != os.getpid():
            raise LockUnavailable(
                f"The client of lock {lock!r} stayed in the parent process. Make one in this process."
            )
        return session

    @classmethod
    def _met(cls, client: KazooClient, seconds: float) -> ZooKeeperSession:
        """Meet a client, once. A server that hangs holds up who waits for this client, each in his own time."""
        deadline = time.monotonic() + seconds
        meeting = _meetings.setdefault(client, threading.Lock())
        if not meeting.acquire(timeout=seconds):
            raise TimeoutError("no answer yet to another thread, which asked first")
        try:
            session = _sessions.get(client)
            if session is None:
                session = _sessions[client] = cls(client, deadline - time.monotonic())
            return session
        finally:
            meeting.release()

    @contextmanager
    def ringing(self, bell: Any, path: str) -> Iterator[None]:
        """Set the event `bell` when something happens to the node at `path`, or to the session."""
        self._bells[bell] = path
        try:
            yield
        finally:
            del self._bells[bell]

    def ring(self, event: WatchedEvent) -> None:
        """Wake who waits. One watcher for all, so that tries that end leave only one watch a node with kazoo."""
        for bell, path in list(self._bells.items()):
            if event.path in (path, None):
                bell.set()

    def _changed(self, state: KazooState) -> None:
        if state == KazooState.LOST:
            self.number += 1


_sessions: weakref.WeakKeyDictionary[KazooClient, ZooKeeperSession] = weakref.WeakKeyDictionary()
_meetings: weakref.WeakKeyDictionary[KazooClient, threading.Lock] = weakref.WeakKeyDictionary()
"""Who holds the mutex of a client meets it."""

# A thread of the parent's may have held one.
os.register_at_fork(after_in_child=_meetings.clear)


class ZooKeeperRenewer:
    """Asks for the nodes of all leases on one client, which keeps its session. See `locking.renewal.Renewer`."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZooKeeperRenewer) and other._client is self._client

    def __hash__(self) -> int:
        return hash((ZooKeeperRenewer, id(self._client)))

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[bool | None]:
        """See `Renewer.renew`. The server catches up with the leader first, who knows which sessions have ended."""
        deadline = time.monotonic() + seconds
        caught_up = self._client.sync_async(ROOT)
        nodes = [self._client.exists_async(cast(ZooKeeperLease, lease).path) for lease in leases]
        ours = self._found(caught_up, deadline)
        return [ours and self._found(node, deadline) for node in nodes]

    def close(self) -> None:
        """See `Renewer.close`. The client is its owner's."""

    def _found(self, result: IAsyncResult, deadline: float) -> bool | None:
        try:
            return result.get(timeout=max(0.0, deadline - time.monotonic())) is not None
        except SessionExpiredError:
            return False
        except (KazooException, self._client.handler.timeout_exception) as error:
            logger.warning("A lease was not renewed (%s); it is tried again.", type(error).__name__)
            return None


def abandon(client: KazooClient, line: str, token: str) -> Any:
    """Take the node of `token` out of the line, made or still being made, however often the connection is cut.

    It returns at once. Requests of a session are run in order, so what is found now includes an unanswered create.

    Returns:
        An event that is set when the node is gone. When the session ends before, it is gone with it.
    """
    gone = client.handler.event_object()

    def look() -> None:
        if client.handler.running:
            client.sync_async(line)
            client.get_children_async(line).rawlink(found)
        else:  # it was stopped, and its session with it
            gone.set()

    def found(result: IAsyncResult) -> None:
        try:
            mine = [node for node in result.get_nowait() if node.startswith(token)]
        except ConnectionLoss:
            look()
        except KazooException:
            gone.set()
        else:
            if mine:
                client.delete_async(f"{line}/{mine[0]}").rawlink(deleted)
            else:
                gone.set()

    def deleted(result: IAsyncResult) -> None:
        if isinstance(result.exception, ConnectionLoss):
            look()
        else:
            gone.set()

    look()
    return gone


class CreateContainer(Create):  # type: ignore[misc, unused-ignore]
    """kazoo's request for a node, as the one for a container: https://issues.apache.org/jira/browse/ZOOKEEPER-2163"""

    type = 19


CONTAINER = 4


def negotiated(client: KazooClient, seconds: float) -> float:
    """Return the session timeout, in seconds, that the server agrees to with this client, if it answers in time.

    kazoo asks for one and does not tell what it got, so the same question is put again, by a session that is closed at
    once. The servers of an ensemble are to agree on the bounds.

    Raises:
        OSError, KazooException, AttributeError: there is no connection, or no answer within `seconds`.
    """
    asked: int = client._session_timeout
    deadline = time.monotonic() + seconds
    connection = client.handler.create_connection(
        client._connection._socket.getpeername()[:2],
        hostname=next(host for host, _ in client.hosts),
        timeout=seconds,
        use_ssl=client.use_ssl,
        ca=client.ca,
        certfile=client.certfile,
        keyfile=client.keyfile,
        keyfile_password=client.keyfile_password,
        verify_certs=client.verify_certs,
        check_hostname=client.check_hostname,
    )
    with connection, connection.makefile("rwb") as stream:
        connection.settimeout(max(deadline - time.monotonic(), SHORTEST_ANSWER))
        for request in (
            Connect(0, 0, asked, 0, bytes(16), client.read_only).serialize(),
            int_struct.pack(1) + int_struct.pack(Close.type),
        ):
            stream.write(int_struct.pack(len(request)) + request)
        stream.flush()
        try:
            (length,) = int_struct.unpack(stream.read(4))
            answer, _ = Connect.deserialize(stream.read(length), 0)
        except struct.error as error:
            raise ConnectionError("it has closed the connection") from error
        stream.read()
    return float(answer.time_out) / 1000
