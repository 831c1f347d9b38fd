"""A child ends when it is told to, with all that it started, and when its parent is gone."""

import os
import pwd
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from servers import Child, ServerError
from tests.servers.support import gone, run_python
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word for a dead parent is Linux' own")
PAUSE = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {PAUSE}"
# Says who it started, and goes.
LEAVES_ONE_BEHIND = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {PAUSE!r}]).pid)"
# A grandchild asks to end with a parent that is not its own.
ORPHAN = """
import os, signal
from servers.process import _end_with_parent
ask = _end_with_parent(signal.SIGTERM)
if os.fork() == 0:
    if os.fork() == 0:
        ask()
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
WITH_GROUPS = """
import os, sys
from pathlib import Path
from servers import Child
os.setgroups([0, 1])
child = Child("child", ["/bin/sh", "-c", "id -u; id -g; id -G"], log=Path(sys.argv[1]), user="nobody", cwd=Path("/"))
child.start()
child.wait_until(lambda: not child.alive, 30)
"""
PARENT = """
import signal, sys
from pathlib import Path
from servers import Child
child = Child("child", [sys.executable, "-c", sys.argv[2]], log=Path(sys.argv[1]))
child.start()
child.wait_until(lambda: "ready" in Path(sys.argv[1]).read_text(), 30)
print(child.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


def child_of(code: str, log: Path, **options: object) -> Child:
    return Child("child", [sys.executable, "-c", code], log=log, **options)  # type: ignore[arg-type]


def started(code: str, log: Path) -> Child:
    child = child_of(code, log)
    child.start()
    child.wait_until(lambda: "ready" in log.read_text(), 30.0)
    return child


def test_it_runs_until_it_is_stopped_and_can_be_started_again(log: Path) -> None:
    child = child_of(PAUSE, log)
    assert not child.alive
    for _ in range(2):
        child.start()
        assert child.alive
        assert psutil.pid_exists(child.pid)
        child.stop()
        assert not child.alive
        assert child.returncode == -signal.SIGTERM
        assert not psutil.pid_exists(child.pid)
    child.stop()
    child.kill()


def test_it_is_asked_with_its_own_stop_signal(log: Path) -> None:
    child = child_of("import signal; signal.signal(signal.SIGINT, signal.SIG_DFL);" + PAUSE, log)
    child.stop_signal = signal.SIGINT
    child.start()
    child.wait_until(lambda: "ready" in log.read_text(), 30.0)
    child.stop()
    assert child.returncode == -signal.SIGINT


def test_one_that_ignores_the_stop_signal_is_killed(log: Path) -> None:
    child = started(STUBBORN, log)
    child.stop(timeout=0.1)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_it_started_ends_with_it(log: Path, end: str) -> None:
    code = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); import signal; signal.pause()"
    )
    child = started(code, log)
    [grandchild] = psutil.Process(child.pid).children()
    getattr(child, end)()
    wait_for(lambda: gone(grandchild))


def test_what_it_left_behind_ends_once_it_is_seen_to_be_gone(log: Path) -> None:
    child = child_of(LEAVES_ONE_BEHIND, log)
    child.start()
    wait_for(lambda: gone(psutil.Process(child.pid)))
    left = psutil.Process(int(log.read_text().split()[0]))
    assert not gone(left)
    assert not child.alive
    wait_for(lambda: gone(left))


def test_a_terminals_ctrl_c_does_not_reach_it(log: Path) -> None:
    child = started(PAUSE, log)
    assert os.getsid(child.pid) == child.pid
    assert os.getpgid(child.pid) == child.pid
    child.stop()


def test_it_is_not_started_from_another_thread_as_it_would_end_with_that_thread(log: Path) -> None:
    child = child_of(PAUSE, log)
    errors: list[str] = []

    def start() -> None:
        try:
            child.start()
        except ServerError as error:
            errors.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert [error for error in errors if "main thread" in error]
    assert not child.alive
    assert not log.exists()


def test_it_is_not_started_twice(log: Path) -> None:
    child = started(PAUSE, log)
    pid = child.pid
    with pytest.raises(ServerError, match=f"runs already, as process {pid}"):
        child.start()
    child.stop()
    assert child.pid == pid


def test_a_command_that_is_not_there_is_a_clear_error(log: Path) -> None:
    with pytest.raises(ServerError, match=r"child cannot be run \(/no/such/program\)"):
        Child("child", ["/no/such/program"], log=log).start()


def test_one_whose_end_is_waited_for_may_end_right_after_a_look(log: Path) -> None:
    child = started(PAUSE, log)

    def over() -> bool:
        before = not child.alive
        child.stop()
        return before

    child.wait_until(over, 30.0)
    assert not child.alive


def test_one_that_dies_is_reported_with_what_it_said_in_this_run(log: Path) -> None:
    log.write_text("from an earlier run\n")
    child = child_of("import sys; sys.exit('no space left')", log)
    child.start()
    with pytest.raises(ServerError, match=r"ended with status 1\.\n  no space left") as error:
        child.wait_until(lambda: False, 30.0)
    assert "earlier" not in str(error.value)


def test_one_that_never_gets_ready_is_reported_and_still_ours_to_stop(log: Path) -> None:
    child = started(PAUSE, log)
    with pytest.raises(ServerError, match=r"not ready within 0 s\.\n  ready"):
        child.wait_until(lambda: False, 0.1)
    assert child.alive
    child.stop()


def test_only_its_owner_may_read_its_log(log: Path) -> None:
    started(PAUSE, log).stop()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_link_in_place_of_its_log_is_not_followed(log: Path, tmp_path: Path) -> None:
    log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ServerError, match="cannot be run"):
        child_of(PAUSE, log).start()
    assert not (tmp_path / "elsewhere").exists()


def test_it_sees_the_given_environment_only(log: Path) -> None:
    child = child_of("import os; print(sorted(os.environ))", log, env={"ONLY": "this", "LC_ALL": "C"})
    child.start()
    wait_for(lambda: not child.alive)
    assert eval(log.read_text()) == ["LC_ALL", "ONLY"]  # noqa: S307


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_its_parent_dies(log: Path, number: signal.Signals) -> None:
    parent = run_python(PARENT, log, PAUSE)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(number)
    parent.wait()
    wait_for(lambda: gone(child))


def test_without_the_kernels_word_it_would_outlive_its_parent(log: Path) -> None:
    switched_off = "import servers.process; servers.process._end_with_parent = lambda number: None\n"
    parent = run_python(switched_off + PARENT, log, PAUSE)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    assert not gone(child)
    child.kill()


def test_one_whose_parent_died_before_it_could_ask_does_not_go_on() -> None:
    assert run_python(ORPHAN).communicate()[0] == "1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_as_root_it_runs_as_another_user_without_our_groups(log: Path) -> None:
    assert run_python(WITH_GROUPS, log).wait() == 0
    nobody = pwd.getpwnam("nobody")
    assert log.read_text().split() == [str(nobody.pw_uid), str(nobody.pw_gid), str(nobody.pw_gid)]
