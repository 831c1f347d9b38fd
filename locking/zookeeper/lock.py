"""ZooKeeperLock: a lock on ZooKeeper. Clients queue with one node each, and the first node holds the lock.

    /locks/<name>                       queue: a container, which the server removes after it has been empty for a while
    /locks/<name>/<token>-<sequence>    holder or waiter: an ephemeral node, which disappears with its session

The token comes first in a node's name, so that a client finds its node even if the answer to the creation was lost.
Each waiter watches only the node right before its own, so a release wakes one waiter. The deleted node may have
belonged to a waiter that died. So a woken waiter reads the queue again before it takes the lock.

Containers need ZooKeeper 3.5.3 or later.

Source: "ZooKeeper Recipes and Solutions, Locks", https://zookeeper.apache.org/doc/r3.8.0/recipes.html#sc_recipes_Locks
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, NodeExistsError, NoNodeError, SessionExpiredError
from kazoo.security import OPEN_ACL_UNSAFE

from locking._ids import new_token, owner_label
from locking.arguments import require_client
from locking.errors import LockUnavailable
from locking.lease import Lease
from locking.lock import Capabilities, Lock, wait_timeout
from locking.renewal import watchdog
from locking.zookeeper.lease import ROOT, ZooKeeperLease
from locking.zookeeper.leaving import leave_queue
from locking.zookeeper.protocol import CONTAINER, CreateContainer
from locking.zookeeper.renewal import ZooKeeperRenewer
from locking.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from kazoo.interfaces import IAsyncResult

logger = logging.getLogger(__name__)

SEQUENCE_DIGITS = 10

MIN_ANSWER_TIMEOUT = 1.0
"""Minimum seconds that the server has to answer, unless the session timeout is shorter.

The `timeout` of a caller limits only the wait for the lock.
"""


class ZooKeeperLock(Lock):
    """A fair, fenced lock on ZooKeeper that is free soon after the session of its holder has ended.

    The TTL of a lease is the session timeout that client and server have agreed on. A holder that dies leaves the queue
    after that time. A living holder may work longer, because its client keeps the session. Every third of the TTL, the
    watchdog checks that the node of each lease exists. If the node of a lease is not confirmed for a whole TTL, the
    lease is lost, even while kazoo reports the session as alive.

    The fence is the creation id of the node (czxid). This is a counter of the whole ensemble, and grows as long as the
    ensemble keeps its data. Check the fence where you write. It covers a paused holder, and one more case: a server
    reports with a delay to the leader that a session is alive. If the server then loses the leader, its client may
    trust its lease for a moment after the leader has ended the session.

    A lock that is no longer used leaves its empty container, which the server removes within about a minute. If a queue
    is never empty for a minute, its container stays. Its sequence then overflows after 2³¹ changes, and the order of
    its waiters is lost.

    Args:
        client: a started client; any number of locks may share it. A path after its hosts (chroot) is a separate
            namespace of locks. kazoo's threads do not survive a fork: create a client in each process.
        name: name of the lock; any text.
        on_lost: called once with the lease when it is lost. It must not block.
        clock: returns monotonic seconds; for tests.

    Raises:
        TypeError: the client is not a `KazooClient`, or another argument has the wrong type.
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
        survives_node_loss=True,
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
        require_client(client, KazooClient)
        # The timeout that the client requests. The server may grant a shorter or a longer timeout. The first acquire
        # asks the server which timeout it grants.
        super().__init__(name, ttl=client._session_timeout / 1000, on_lost=on_lost, clock=clock)
        self._client = client
        self._renewer = ZooKeeperRenewer(client)
        # quote() keeps dots, but "." and ".." are not allowed as parts of a path.
        self._queue_path = f"{ROOT}/{quote(self.name, safe='', errors='surrogatepass').replace('.', '%2E')}"

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> Lease | None:  # noqa: FBT001, FBT002
        """Acquire the lock as described in `Lock.acquire`.

        If the connection is lost, the call waits for a new connection while the session lives, up to `timeout`. Even if
        `timeout` is less, it waits for a second, or for the session timeout if that is shorter. If the session ends
        while the call is in the queue, its place is lost, and the call raises LockUnavailable. If the session ended
        earlier, the call waits for the client's next session, with the same limits. The first acquire through a client
        asks the server for the session timeout, also with these limits.
        """
        deadline = self._clock() + wait_timeout(blocking, timeout)
        session = ZooKeeperSession.of(self._client, self.name, self._limit(deadline))
        self.ttl = session.timeout
        token = new_token()
        try:
            lease = self._queue(session, token, deadline)
        except BaseException:
            # Leave the queue after an interrupt or a missing answer: otherwise the place stays until the session ends.
            leave_queue(self._client, self._queue_path, token).wait(MIN_ANSWER_TIMEOUT)
            raise
        if lease is None:
            leave_queue(self._client, self._queue_path, token).wait(MIN_ANSWER_TIMEOUT)
        return lease

    def _queue(self, session: ZooKeeperSession, token: str, deadline: float) -> Lease | None:
        """Queue until the lock is granted, and return the lease, or None if `deadline` passes first."""
        while True:
            number = session.number
            try:
                node, fence = self._enter(token, deadline)
                break
            except LockUnavailable as error:
                if type(error.__cause__) is not SessionExpiredError or not self._reconnected(deadline):
                    raise
                logger.info("The session ended before lock %r was asked for; asking in the next session.", self.name)
        while True:
            started = self._clock()
            try:
                queue = self._look(deadline)
                if node not in queue:
                    raise LockUnavailable(
                        f"The place in the queue of lock {self.name!r} was lost because the session has ended. "
                        "Try again."
                    )
                place = queue.index(node)
                if place == 0:
                    return self._granted(session, number, node, fence, started)
                left = deadline - self._clock()
                if left <= 0:
                    return None
                self._sleep(session, queue[place - 1], deadline)
            except ConnectionLoss:
                logger.info("The connection was lost during the wait for lock %r; looking for its place.", self.name)

    def _enter(self, token: str, deadline: float) -> tuple[str, int]:
        """Create this client's node in the queue, and return the node's name and creation id.

        If an earlier request was not answered but has created the node, find that node.
        """
        sent = False
        while True:
            try:
                if sent and (found := self._find(token, deadline)):
                    return found
                sent = True
                path, stat = self._answer(
                    self._client.create_async(
                        f"{self._queue_path}/{token}-",
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
                self._create_queue(deadline)
            except ConnectionLoss:
                logger.info("The connection was lost while lock %r was asked for; looking for the answer.", self.name)

    def _reconnected(self, deadline: float) -> bool:
        """Wait until the client has a new session, and return whether that came in time."""
        return bool(self._client._live.wait(self._limit(deadline)))

    def _limit(self, deadline: float) -> float:
        """Return how long to wait for one answer of the server, in seconds."""
        return min(self.ttl, max(deadline - self._clock(), MIN_ANSWER_TIMEOUT))

    def _find(self, token: str, deadline: float) -> tuple[str, int] | None:
        for node in self._look(deadline):
            if node.startswith(token):
                stat = self._answer(self._client.exists_async(f"{self._queue_path}/{node}"), deadline)
                return (node, stat.czxid) if stat else None
        return None

    def _look(self, deadline: float) -> list[str]:
        """Return the nodes of the queue in order.

        A server answers from its own copy of the data, which may be old. A sync request makes the server catch up with
        the leader, and the leader rejects a session that has ended. The server runs the sync and the read in order, so
        the sync costs no round trip.
        """
        caught_up = self._client.sync_async(self._queue_path)
        nodes = self._client.get_children_async(self._queue_path)
        self._answer(caught_up, deadline)
        try:
            return sorted(self._answer(nodes, deadline), key=lambda node: node[-SEQUENCE_DIGITS:])
        except NoNodeError:
            return []

    def _sleep(self, session: ZooKeeperSession, before: str, deadline: float) -> None:
        """Sleep until the node `before` is gone, the connection changes, or `deadline` passes.

        The lock may still be held then, so the caller looks at the queue again.
        """
        path = f"{self._queue_path}/{before}"
        event = self._client.handler.event_object()
        # A watch is reliable only on the connection that set it, so wake up when the client has a new connection.
        connection = self._client._connection._socket
        with session.notifying(event, path):
            try:
                # Do not use exists(). If the node is gone, exists() would watch for a new node of this name, which
                # never comes.
                self._answer(self._client.get_async(path, session.notify), deadline)
            except NoNodeError:
                return
            while not event.wait(max(0.0, min(deadline - self._clock(), session.timeout))):
                same = self._client.connected and self._client._connection._socket is connection
                if self._clock() >= deadline or not same:
                    return

    def _create_queue(self, deadline: float) -> None:
        made = self._client.handler.async_result()
        acl = self._client.default_acl or OPEN_ACL_UNSAFE
        try:
            self._answer(self._client.ensure_path_async(ROOT), deadline)
            container = CreateContainer(f"{self._client.chroot}{self._queue_path}", b"", acl, CONTAINER)
            self._client._call(container, made)
            self._answer(made, deadline)
        except (NodeExistsError, ConnectionLoss):
            return  # after a lost connection, the next attempt shows whether the container exists
        except NoNodeError as error:
            raise LockUnavailable(
                f"The chroot {self._client.chroot!r} of the client does not exist. Create it, and try again."
            ) from error

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
            path=f"{self._queue_path}/{node}",
        )
        self._require_time_left(lease)
        # Remove the node of a collected lease. It would otherwise keep the lock for as long as the client lives.
        lease.finalizer = weakref.finalize(lease, leave_queue, self._client, self._queue_path, lease.token)
        lease.finalizer.atexit = False
        watchdog.watch(lease, self._renewer)
        return lease._hand_out()

    def _extend(self, lease: Lease, ttl: float) -> bool:
        if ttl > lease.ttl:
            raise ValueError(
                f"a ZooKeeper lease lasts for the session timeout of {lease.ttl} s, and cannot be extended by {ttl} s"
            )
        still_held = self._renewer.renew([lease], max(lease.remaining(), MIN_ANSWER_TIMEOUT))[0]
        if still_held is None:
            raise LockUnavailable(f"ZooKeeper did not answer for lock {self.name!r}. Try again while the lease lasts.")
        return still_held

    def _release(self, lease: Lease) -> bool:
        watchdog.forget(lease)
        zookeeper_lease = cast(ZooKeeperLease, lease)
        deadline = self._clock() + lease.ttl
        found = cut = False
        try:
            while not found:
                try:
                    self._answer(self._client.delete_async(zookeeper_lease.path), deadline)
                    found = True
                except ConnectionLoss:
                    cut = True
        except NoNodeError:
            found = cut  # the request on the lost connection has deleted the node
        except LockUnavailable as error:
            if type(error.__cause__) is not SessionExpiredError:  # exactly this class: other errors derive from it
                # If the connection comes back, the session would keep the node, so remove the node in the background.
                leave_queue(self._client, self._queue_path, lease.token)
                raise LockUnavailable(
                    f"ZooKeeper did not confirm the release of lock {self.name!r}. The lock will be free once the "
                    "server can be reached, or when the session ends. For a confirmation, call release again."
                ) from error
        zookeeper_lease.finalizer.detach()
        return found

    def _answer(self, result: IAsyncResult, deadline: float) -> Any:
        """Return the answer to a request.

        Raises:
            NoNodeError, NodeExistsError: the server answered with this error.
            ConnectionLoss: the connection was lost. The request may have taken effect.
            LockUnavailable: the server did not answer in time, or refused. The request may have taken effect.
        """
        try:
            return result.get(timeout=self._limit(deadline))
        except (NoNodeError, NodeExistsError, ConnectionLoss):
            raise
        except (KazooException, self._client.handler.timeout_exception) as error:
            raise LockUnavailable(
                f"ZooKeeper did not answer for lock {self.name!r} ({type(error).__name__}). Try again. If that does "
                "not help, check that the server is running and the client is started."
            ) from error
