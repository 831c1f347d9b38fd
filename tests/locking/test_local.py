"""ThreadLock and ProcessLock."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import pytest

from locking import Lease, Lock, local
from locking.local import ProcessLock, QueuePlace, ThreadLock
from tests.locking import conformance as suite
from tests.locking.conformance import without
from tests.locking.support import FileCell, Log, Patch, Pool, acquired, collect, fork_sleeper, in_fork, process
from tests.waiting import WAIT_TIMEOUT, wait_for


@dataclass(frozen=True)
class ThreadRecipe:
    folder: Path

    def __call__(self, name: str, **options: Any) -> Lock:
        return ThreadLock(name, **options)

    def cell(self, name: str) -> FileCell:
        return FileCell(self.folder / f"{name}.cell")


class ProcessRecipe(ThreadRecipe):
    def __call__(self, name: str, **options: Any) -> Lock:
        return ProcessLock(self.folder, name, **options)


def in_line(name: str) -> int:
    return len(local._queues.get(name, ()))


def openings(path: Path, process: int | str = "self") -> list[int]:
    """Return the file descriptors of the file in a process: in this one, if no other is given."""
    found = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            if link.readlink() == path:
                found.append(int(link.name))
    return found


def tasks() -> set[str]:
    """Return the kernel ids of this process's threads."""
    return {task.name for task in Path("/proc/self/task").iterdir()}


def switches(but: Collection[str]) -> int:
    """Return how often the test's threads have gone to sleep."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        if task.name not in but:
            with suppress(FileNotFoundError, ProcessLookupError):  # ended in the meantime
                lines = (task / "status").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return total


@dataclass(frozen=True)
class Bell:
    """Calls a function each time a thread is about to sleep on the wrapped lock."""

    bell: Any
    before: Callable[[], object]

    def acquire(self, *, timeout: float) -> bool:
        self.before()
        return bool(self.bell.acquire(timeout=timeout))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bell, name)


@without(
    "test_the_death_of_a_waiter_grants_nothing",
    "test_the_first_in_line_may_die",
    "test_the_first_in_line_may_be_stopped",
)
class TestThreadLock(suite.FairConformance, suite.ForkConformance, suite.QuietWaitConformance):
    """ThreadLock under the conformance suite. Its waiters cannot die or stop without their process."""

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> ThreadRecipe:
        return ThreadRecipe(tmp_path)

    def waiters(self, lock: Lock) -> int:
        return max(0, in_line(lock.name) - 1)

    def traces(self, lock: Lock) -> dict[str, int]:
        return {"lines": len(local._queues)}

    @pytest.fixture(autouse=True)
    def threads_of_others(self) -> None:
        """Remember the threads that ran before this test."""
        self.others = tasks()

    def asked(self, lock: Lock) -> int:
        return switches(but=self.others)

    @contextmanager
    def woken_in_vain(self, lock: Lock) -> Iterator[Callable[[], object]]:
        """Yield a function that queues and gives up. With this lock, that wakes only the first place, the holder's."""
        with lock.hold():
            yield lambda: lock.acquire(timeout=0)

    def before_sleep(self, monkeypatch: Patch, body: Callable[[], object]) -> None:
        made = QueuePlace.__init__

        def make(self: QueuePlace, name: str) -> None:
            made(self, name)
            self._wake = Bell(self._wake, body)  # type: ignore[assignment]

        monkeypatch.setattr(QueuePlace, "__init__", make)


class TestProcessLock(suite.AcrossProcessesConformance, suite.ForkConformance, suite.SurvivesHolderCrashConformance):
    @pytest.fixture
    def recipe(self, tmp_path: Path) -> ProcessRecipe:
        return ProcessRecipe(tmp_path)

    def waiters(self, lock: Lock) -> int:
        """Count the threads that have opened the file but not locked it."""
        assert isinstance(lock, ProcessLock)
        count = 0
        for file in openings(lock._path):
            with suppress(FileNotFoundError):
                count += "FLOCK" not in Path(f"/proc/self/fdinfo/{file}").read_text()
        return count

    def traces(self, lock: Lock) -> dict[str, int]:
        assert isinstance(lock, ProcessLock)
        folder = lock._path.parent
        return {"open": len(openings(lock._path)), "known": len(local._files), "files": len(list(folder.iterdir()))}


# ThreadLock


def test_an_interrupted_release_wakes_the_next(name: str, threads: Pool, monkeypatch: Patch) -> None:
    class Interrupted(deque):  # type: ignore[type-arg]
        def remove(self, turn: object) -> None:
            super().remove(turn)
            if self:  # Another waiter is behind this one.
                raise KeyboardInterrupt

    lock = ThreadLock(name)
    monkeypatch.setitem(local._queues, name, Interrupted())
    lease = acquired(lock)
    waiting = threads.submit(lock.acquire, timeout=WAIT_TIMEOUT)
    wait_for(lambda: in_line(name) == 2)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    assert waiting.result(2 * WAIT_TIMEOUT).release() is True


@pytest.mark.parametrize("recipe", [ThreadRecipe, ProcessRecipe])
def test_a_dropped_lease_frees_the_lock_where_warnings_are_errors(
    recipe: Callable[[Path], Any], tmp_path: Path, name: str, monkeypatch: Patch, caplog: Log
) -> None:
    lock, told = recipe(tmp_path)(name), list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with warnings.catch_warnings(action="error"):
        acquired(lock)  # and dropped at once
        collect()
    assert [type(each.exc_value) for each in told] == [ResourceWarning]
    acquired(lock, blocking=False).release()
    collect()
    assert caplog.text.count(f"{name!r} was dropped") == 1, "a lease that was released was not dropped"


def test_a_finalizer_may_release_at_any_time(name: str) -> None:

    class Knot:
        def __init__(self, number: int) -> None:
            self.me = self
            self.lease = ThreadLock(f"{name} {number}").acquire()

    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for number in range(500):
            Knot(number)
            acquired(ThreadLock(name), timeout=0).release()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert not [held for held in local._queues if held.startswith(name)]


def test_a_lease_held_at_exit_is_not_logged(tmp_path: Path) -> None:
    script = (
        "import sys; from locking.local import ProcessLock, ThreadLock;"
        "leases = [ThreadLock('x').acquire(), ProcessLock(sys.argv[1], 'x').acquire()]"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=WAIT_TIMEOUT
    )
    assert (run.returncode, run.stderr) == (0, "")


# ProcessLock


@pytest.mark.parametrize(
    ("lock", "file"), [("../stock:sku/ü 1", "..%2Fstock%3Asku%2F%C3%BC%201.lock"), ("x" * 250, "x" * 250 + ".lock")]
)
def test_the_file_stays(tmp_path: Path, lock: str, file: str) -> None:
    acquired(ProcessLock(tmp_path, lock)).release()
    assert [(left.name, left.stat().st_size) for left in tmp_path.iterdir()] == [(file, 0)]


def test_another_folder_is_another_lock(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with ProcessLock(tmp_path / "a", name).hold(), ProcessLock(tmp_path / "b", name).hold(timeout=0):
        pass


@pytest.mark.parametrize("unlocks", [True, False])
def test_a_release_unlocks_a_file_open_in_a_child(tmp_path: Path, name: str, monkeypatch: Patch, unlocks: bool) -> None:
    """A release unlocks a file that a forked child has open. Negative control: without LOCK_UN, it stays locked."""
    if not unlocks:
        monkeypatch.setattr(local, "_unlock", lambda file: None)
    lock = ProcessLock(tmp_path, name)
    lease = acquired(lock)
    hidden, local._files = local._files, set()
    child = fork_sleeper()
    local._files = hidden
    assert openings(lock._path, child)
    assert lease.release() is True
    again = lock.acquire(blocking=False)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (again is not None) is unlocks
    if again is not None:
        again.release()


def hold_and_fork(folder: Path, name: str, closes: bool, pipe: Pipe) -> None:
    """Acquire the lock, fork a child that lives on, report its process id, and wait."""
    lease = ProcessLock(folder, name).acquire()
    if not closes:
        local._files = set()
    pipe.send(fork_sleeper())
    pipe.recv()
    assert lease is None


@pytest.mark.parametrize("closes", [True, False])
def test_the_lock_of_a_crashed_parent_becomes_free(tmp_path: Path, name: str, closes: bool) -> None:
    lock = ProcessLock(tmp_path, name)
    with process(hold_and_fork, tmp_path, name, closes) as (parent, pipe):
        child = pipe.recv()
        try:
            wait_for(lambda: bool(openings(lock._path, child)) is not closes)
            assert lock.acquire(blocking=False) is None
            parent.kill()
            parent.join()
            lease = lock.acquire(timeout=WAIT_TIMEOUT if closes else 0.5)
            os.kill(child, 0)
            assert (lease is not None) is closes
            if lease is not None:
                lease.release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_does_not_unlock_its_parents_file(tmp_path: Path, name: str) -> None:
    lock = ProcessLock(tmp_path, name)
    leases: list[Lease | None] = [lock.acquire()]

    def drop() -> str:
        leases.clear()
        collect()
        return str((lock.acquire(blocking=False), len(openings(lock._path))))

    assert in_fork(drop) == "(None, 0)"
    assert lock.acquire(blocking=False) is None
    assert leases[0].release() is True


@pytest.mark.parametrize("recipe", [ThreadRecipe, ProcessRecipe])
def test_a_child_forked_while_threads_lock_can_lock(
    recipe: Callable[[Path], Any], tmp_path: Path, name: str, threads: Pool
) -> None:
    stop = threading.Event()

    def take_turns() -> None:
        lock = recipe(tmp_path)(f"{name} busy")
        while not stop.is_set():
            acquired(lock).release()

    busy = [threads.submit(take_turns) for _ in range(4)]
    try:
        lock = recipe(tmp_path)(name)
        for _ in range(10):
            assert in_fork(lambda: str(lock.acquire(timeout=WAIT_TIMEOUT).release())) == "True"
    finally:
        stop.set()
    assert [one.result(WAIT_TIMEOUT) for one in busy] == [None] * 4
