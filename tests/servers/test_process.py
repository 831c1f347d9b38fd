"""A child process, and every process that it started, ends when it is stopped or its parent dies."""

import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from servers import Child, ServerError, process
from tests.servers.support import gone, run_python
from tests.waiting import WAIT_TIMEOUT, wait_for

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel tells a child that its parent died")
PAUSE = "import signal; print('ready', flush=True); signal.pause()"
DEFAULT_INTERRUPT = f"import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); {PAUSE}"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {PAUSE}"
STARTS_ONE = f"import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); signal.pause()"
LEAVES_ONE_BEHIND = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {PAUSE!r}]).pid)"
# A grandchild runs the function meant for a child. It finds another parent than expected, as after a parent's death.
GRANDCHILD = """
from servers.process import _request_death_signal
request = _request_death_signal(signal.SIGTERM)
if os.fork() == 0:
    if os.fork() == 0:
        request()
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
WITH_GROUPS = """
from servers import Child
os.setgroups([0, 1])
child = Child("child", ["/bin/sh", "-c", "id -u; id -g; id -G"], log=path, user=61000, cwd=Path("/"))
child.start()
child.wait_until(lambda: not child.alive, 30)
"""
PARENT = """
from servers import Child
child = Child("child", [sys.executable, "-c", sys.argv[2]], log=path)
child.start()
child.wait_until(lambda: "ready" in path.read_text(), 30)
print(child.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


def child_of(code: str, log: Path, **options: object) -> Child:
    return Child("child", [sys.executable, "-c", code], log=log, **options)  # type: ignore[arg-type]


def started(code: str, log: Path, **options: object) -> Child:
    child = child_of(code, log, **options)
    child.start()
    child.wait_until(lambda: "ready" in log.read_text(), 30.0)
    return child


def test_it_can_be_stopped_and_started_again(log: Path) -> None:
    child = child_of(PAUSE, log)
    assert not child.alive
    for _ in range(2):
        child.start()
        pid = child.pid
        assert child.alive
        assert os.getsid(pid) == os.getpgid(pid) == pid  # Ctrl-C does not reach another process group.
        with pytest.raises(ServerError, match=f"runs already, as process {pid}"):
            child.start()
        assert child.pid == pid
        child.stop()
        assert (child.alive, child.returncode, psutil.pid_exists(pid)) == (False, -signal.SIGTERM, False)
    child.stop()
    child.kill()
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("code", "options", "timeout", "ends_by"),
    [
        (DEFAULT_INTERRUPT, {"stop_signal": 2}, WAIT_TIMEOUT, signal.SIGINT),
        (STUBBORN, {}, 0.5, signal.SIGKILL),
    ],
)
def test_stop_sends_the_stop_signal_and_then_kills(
    log: Path, code: str, options: dict[str, int], timeout: float, ends_by: signal.Signals
) -> None:
    child = started(code, log, **options)
    child.stop(timeout=timeout)
    assert child.returncode == -ends_by


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_its_children_end_with_it(log: Path, end: str) -> None:
    child = started(STARTS_ONE, log)
    [grandchild] = psutil.Process(child.pid).children()
    getattr(child, end)()
    wait_for(lambda: gone(grandchild))


def test_children_that_it_left_behind_end_once_its_end_is_noticed(log: Path) -> None:
    child = child_of(LEAVES_ONE_BEHIND, log)
    child.start()
    wait_for(lambda: gone(psutil.Process(child.pid)))
    # Two processes write to the log in any order, so search for the number.
    left = psutil.Process(int(re.findall(r"\d+", log.read_text())[0]))
    assert not gone(left)
    assert not child.alive
    wait_for(lambda: gone(left))


def test_another_thread_a_missing_command_or_a_link_as_its_log_is_an_error(log: Path, tmp_path: Path) -> None:
    child = child_of(PAUSE, log)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ServerError, match="main thread"):
        pool.submit(child.start).result()
    assert not child.alive
    assert not log.exists()
    with pytest.raises(ServerError, match=r"child cannot be run \(/no/such/program\)"):
        Child("child", ["/no/such/program"], log=log).start()
    log.unlink()
    log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ServerError, match="cannot be run"):
        child_of(PAUSE, log).start()
    assert not (tmp_path / "elsewhere").exists()


def test_waiting_for_its_end_succeeds_when_it_ends_between_two_checks(log: Path) -> None:
    child = started(PAUSE, log)

    def ended() -> bool:
        before = not child.alive
        child.stop()
        return before

    child.wait_until(ended, 30.0)
    assert not child.alive


def test_a_child_that_ends_early_or_never_gets_ready_is_reported_with_its_output(log: Path) -> None:
    log.write_text("from an earlier run\n")
    child = child_of("import sys; sys.exit('no space left')", log)
    child.start()
    with pytest.raises(ServerError, match=r"ended with status 1\.\n  no space left") as error:
        child.wait_until(lambda: False, 30.0)
    assert "earlier" not in str(error.value)
    child = started(PAUSE, log)
    with pytest.raises(ServerError, match=r"not ready within 0 s\.\n  ready"):
        child.wait_until(lambda: False, 0.1)
    assert child.alive
    child.stop()


def test_it_gets_only_the_given_environment(log: Path) -> None:
    child = child_of("import os; print(sorted(os.environ))", log, env={"ONLY": "this", "LC_ALL": "C"})
    child.start()
    wait_for(lambda: not child.alive)
    assert eval(log.read_text()) == ["LC_ALL", "ONLY"]  # noqa: S307


BY_THE_KERNEL = ""
BY_A_WATCHER = "import servers.process as p; p.ON_LINUX = False\n"
BY_NOBODY = "import servers.process as p; p._request_death_signal = lambda number: None\n"


@pytest.mark.parametrize(
    ("number", "told"),
    [
        *[
            pytest.param(each, BY_THE_KERNEL, marks=[on_linux, *([] if each == signal.SIGKILL else [pytest.mark.slow])])
            for each in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        ],
        (signal.SIGKILL, BY_A_WATCHER),
        pytest.param(signal.SIGTERM, BY_A_WATCHER, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, BY_NOBODY, marks=on_linux),
    ],
)
def test_it_ends_when_its_parent_dies(log: Path, number: signal.Signals, told: str) -> None:
    requested = told is not BY_NOBODY
    parent = run_python(told + PARENT, log, PAUSE)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(number)
    parent.wait()
    if requested:
        wait_for(lambda: gone(child))
    assert gone(child) is requested
    if not requested:
        child.kill()


def test_a_watcher_goes_with_its_child(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher ends with its child and sends no signal, because another process may have got the child's id."""
    monkeypatch.setattr(process, "ON_LINUX", False)
    child = child_of(PAUSE, log)
    child.start()
    watcher = psutil.Process(child._watcher._process.pid)  # type: ignore[union-attr]
    child.stop()
    assert gone(watcher)


@on_linux
def test_a_child_whose_parent_died_before_its_request_exits() -> None:
    assert run_python(GRANDCHILD).communicate()[0] == "1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_user_does_not_get_our_groups(log: Path) -> None:
    assert run_python(WITH_GROUPS, log).wait() == 0
    assert log.read_text().split() == ["61000"] * 3
