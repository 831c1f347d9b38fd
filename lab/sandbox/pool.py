"""The pool of sandboxes. Their databases are separate from the shop's, so no schedule can change the shop's data."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.conf import settings
from redis import ResponseError

from lab.explorer.actor import current_actor
from lab.sandbox import databases
from lab.sandbox.databases import MOST, SandboxesBusy, redis_url_of, server_errors
from lab.sandbox.redis_database import NotOurs
from lab.sandbox.sandbox import IN_USE, Sandbox
from servers import ServerError

VISITORS_WAIT, COMMANDS_WAIT = 5.0, 30.0
"""Seconds for which a visitor's page, or a command, waits for a free sandbox."""
POLL = 0.05
"""Seconds between two attempts to reserve a sandbox that another process uses."""

_changed = threading.Condition()
_used: set[int] = set()
"""Numbers of the sandboxes that a thread of this process uses or tries to reserve."""
_idle: dict[int, Sandbox] = {}
"""Open sandboxes that this process does not use at the moment. Another process may use them."""

SHOP = ("locking", "inventory", "shop")
"""Packages that write to the shop's log."""
_thread = threading.local()


@contextmanager
def borrowed(wait_timeout: float = VISITORS_WAIT) -> Iterator[Sandbox]:
    """Reserve one of the visitors' sandboxes during the `with` block.

    Args:
        wait_timeout: seconds to wait for a free sandbox.

    Raises:
        SandboxesBusy: no sandbox was free within that time.
        ServerError: no sandbox can be opened.
        psycopg.OperationalError: the reservation was lost before the block ended.
    """
    number, sandbox = _reserve(range(settings.LAB_SANDBOXES), time.monotonic() + wait_timeout)
    released = None
    _thread.borrows = True
    try:
        yield sandbox
        sandbox.release()
        released = sandbox
    finally:
        _thread.borrows = False
        try:
            if released is None:
                sandbox.close()
        finally:
            _put_back(number, released)


@contextmanager
def for_a_command(wait_timeout: float = COMMANDS_WAIT) -> Iterator[Sandbox]:
    """Reserve a sandbox during the `with` block. Use a visitors' sandbox only if no other sandbox is free.

    Args:
        wait_timeout: seconds to wait for a free sandbox.

    Raises:
        SandboxesBusy: no sandbox was free within that time. The message names the processes that use them.
        ServerError: no sandbox can be opened, or a server stopped answering before the block ended.
    """
    numbers = (*range(settings.LAB_SANDBOXES, MOST), *range(settings.LAB_SANDBOXES))
    try:
        number, sandbox = _reserve(numbers, time.monotonic() + wait_timeout)
    except SandboxesBusy as busy:
        raise SandboxesBusy(f"{busy} They are used by: {_users()}.") from busy
    try:
        with server_errors():
            yield sandbox
    finally:
        try:
            sandbox.close()
        finally:
            _put_back(number, None)


def is_no_visitors(record: logging.LogRecord) -> bool:
    """Log filter: return False for messages of the shop's packages in a visitor's schedule.

    The page shows the outcome of the schedule.
    """
    in_schedule = getattr(_thread, "borrows", False) or current_actor() is not None
    return not (in_schedule and record.name.partition(".")[0] in SHOP)


def open_sandbox(number: int, redis_url: str = "") -> Sandbox:
    """Open a sandbox and reserve it until it is closed.

    Args:
        number: number of the sandbox, from 0.
        redis_url: a Redis database to use instead of the sandbox's own on the shop's server.

    Raises:
        SandboxesBusy: the sandbox is in use.
        ServerError: there is no such sandbox, or it cannot be opened.
    """
    sandbox = _open(number, time.monotonic() + VISITORS_WAIT, redis_url)
    try:
        if _acquire(number, sandbox):
            return sandbox
    except BaseException:
        sandbox.close()
        raise
    sandbox.close()
    raise SandboxesBusy(f"Sandbox {number} is in use.")


def _reserve(numbers: Sequence[int], until: float) -> tuple[int, Sandbox]:
    """Reserve the first of these sandboxes that is free, and return its number and the sandbox.

    Sandboxes whose databases have other data are skipped.

    Raises:
        SandboxesBusy: no sandbox was free before `until`, a time on the monotonic clock.
        NotOurs: the databases of all these sandboxes hold other data.
    """
    while True:
        for number in numbers:
            try:
                if (sandbox := _try(number, until)) is not None:
                    return number, sandbox
            except NotOurs:
                numbers = [other for other in numbers if other != number]
                if not numbers:
                    raise
        with _changed:
            left = until - time.monotonic()
            if left <= 0:
                raise SandboxesBusy(f"All {len(numbers)} sandboxes are in use. Try again in a moment.")
            elsewhere = any(number not in _used for number in numbers)
            _changed.wait(min(POLL, left) if elsewhere else left)


def _try(number: int, until: float) -> Sandbox | None:
    with _changed:
        if number in _used:
            return None
        _used.add(number)
        sandbox = _idle.pop(number, None)
    acquired = False
    try:
        if sandbox is not None:
            try:
                acquired = _acquire(number, sandbox)
            except ServerError:
                # A server may have been restarted after the last use of this sandbox: open it again.
                sandbox.close()
                sandbox = None
        if sandbox is None:
            sandbox = _open(number, until)
            acquired = _acquire(number, sandbox)
    except BaseException:
        if sandbox is not None:
            sandbox.close()
        _put_back(number, None)
        raise
    if acquired:
        return sandbox
    _put_back(number, sandbox)
    return None


def _put_back(number: int, sandbox: Sandbox | None) -> None:
    """Let other threads use the sandbox with this number.

    If `sandbox` is None, the sandbox was closed, and the next user opens it again. Otherwise it stays open.
    """
    with _changed:
        _used.discard(number)
        if sandbox is not None:
            _idle[number] = sandbox
        _changed.notify_all()


def _open(number: int, until: float, redis_url: str = "") -> Sandbox:
    """Open a sandbox without reserving it. Create its Postgres database if needed."""
    url = redis_url or redis_url_of(number, settings.REDIS_LOCATION)
    with server_errors():
        return Sandbox(url, databases.postgres_database(number, until))


def _acquire(number: int, sandbox: Sandbox) -> bool:
    try:
        with server_errors():
            return sandbox.acquire()
    except ResponseError as error:
        if "out of range" not in str(error):
            raise ServerError(f"Redis refuses sandbox {number}: {error}") from error
        raise ServerError(
            f"Redis refuses the database of sandbox {number}: {error}. The lab needs a Redis with {MOST + 1} databases "
            f"(`databases {MOST + 1}` in its configuration), of which it empties those that REDIS_URL does not name."
        ) from error


def _users() -> str:
    query = (
        "SELECT string_agg(DISTINCT coalesce(application_name, '?'), '; ') FROM pg_locks JOIN pg_stat_activity "
        "USING (pid) WHERE locktype = 'advisory' AND classid = %s AND objid = %s AND objsubid = 2 AND granted"
    )
    until = time.monotonic() + VISITORS_WAIT
    with server_errors(), databases.server(databases.shops_database(), until) as connection:
        (users,) = connection.execute(query, IN_USE).fetchone() or (None,)
    return str(users or "no process any more")
