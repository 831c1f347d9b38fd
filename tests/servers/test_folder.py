"""The run folder: its place, the paths that it refuses, its owner, and its removal."""

import fcntl
import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest

from servers import RunFolder, ServerError, etcd, ownership, postgres, valkey
from servers.folder import CHECKOUT
from tests.servers.support import run_python
from tests.waiting import wait_for

ROOT = os.geteuid() == 0
FULL_DISK = """
import resource
from servers import ServerError
from servers.cluster import ports_of
folder = RunFolder(path)
folder.create()
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))  # Files can be created, but nothing can be written.
try:
    folder.secret_key()
except ServerError as error:
    print(error)
try:
    ports_of(folder.path, "etcd", each=2)
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
print(len(folder.secret_key()) >= 50, len(ports_of(folder.path, "etcd", each=2)))
print(*sorted(entry.name for entry in folder.path.iterdir()))
"""
HOLD = """
assert RunFolder(path).ownership.take(["valkey"])
print("held", flush=True)
signal.pause()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_default_is_one_folder_per_user_and_checkout(monkeypatch: pytest.MonkeyPatch, folder: RunFolder) -> None:
    monkeypatch.delenv("RUN_FOLDER", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/lu-nowhere")  # noqa: S108
    here = RunFolder.default().path
    monkeypatch.setattr("servers.folder.CHECKOUT", CHECKOUT / "another")
    assert here.parent == Path("/tmp/lu-nowhere")  # noqa: S108
    assert here.name.startswith(f"last-unit-{os.geteuid()}-")
    assert RunFolder.default().path != here
    assert not here.parent.exists()
    monkeypatch.setenv("RUN_FOLDER", str(folder.path))
    assert RunFolder.default().path == folder.path


@pytest.mark.parametrize("exists", [False, True])
def test_other_users_cannot_list_it(folder: RunFolder, exists: bool) -> None:
    if exists:
        folder.path.mkdir()
        folder.path.chmod(0o777)
    folder.create()
    assert mode(folder.path) == (0o711 if ROOT else 0o700)


def test_a_path_too_long_for_a_socket_or_misread_by_postgres_is_refused(outer: Path) -> None:
    for name in ("a,b", "$(touch x)", 'a"b', "`a`", "a\\b"):
        with pytest.raises(ServerError, match="in a path"):
            RunFolder(outer / name).create()
    longest = outer / ("x" * (107 - len("/postgres/.s.PGSQL.5432") - len(str(outer)) - 1))
    with pytest.raises(ServerError, match=r"1 bytes too long for a socket.*RUN_FOLDER"):
        RunFolder(longest.with_name(longest.name + "x")).create()
    assert list(outer.iterdir()) == []
    RunFolder(longest).create()


def assert_refused(path: Path, reason: str) -> None:
    for action in (RunFolder(path).create, RunFolder(path).delete):
        with pytest.raises(ServerError, match=reason):
            action()


def test_a_link_a_file_or_a_missing_parent_is_refused(outer: Path) -> None:
    target, link = outer / "target", outer / "link"
    target.mkdir()
    link.symlink_to(target)
    assert_refused(link, "symbolic link")
    assert list(target.iterdir()) == []
    (outer / "file").touch()
    for path, reason in ((outer / "file", "not a folder"), (outer / "missing" / "run", "cannot be created")):
        with pytest.raises(ServerError, match=reason):
            RunFolder(path).create()


def test_the_folder_of_another_user_is_refused(folder: RunFolder) -> None:
    theirs = folder.path if ROOT else Path("/usr")
    if ROOT:
        theirs.mkdir(mode=0o755)
        os.chown(theirs, pwd.getpwnam("nobody").pw_uid, -1)
    before = mode(theirs)
    assert_refused(theirs, "belongs to user")
    assert mode(theirs) == before


def test_a_folder_with_other_files_is_refused(folder: RunFolder) -> None:
    folder.path.mkdir()
    thesis = folder.path / "thesis.tex"
    thesis.touch()
    assert_refused(folder.path, "in use for something else")
    with pytest.raises(FileNotFoundError):
        folder.ownership.take()
    assert list(folder.path.iterdir()) == [thesis]


@pytest.mark.skipif(not ROOT, reason="needs root")
def test_a_parent_that_the_servers_user_cannot_enter_is_refused(folder: RunFolder, outer: Path) -> None:
    outer.chmod(0o700)
    with pytest.raises(ServerError, match=f"user 61000, who cannot enter {outer}"):
        folder.create()
    assert not folder.path.exists()
    assert mode(outer) == 0o700


@pytest.mark.parametrize(
    ("foreign", "named"),
    [
        (["thesis.tex"], "thesis.tex in it"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more in it"),
        (["photos/"], "photos in it"),
        (["web-8000.log/"], "web-8000.log in it"),
        (["postgres-backup.sql"], "postgres-backup.sql in it"),
    ],
)
def test_delete_removes_everything_but_other_files(folder: RunFolder, foreign: list[str], named: str) -> None:
    folder.secret_key()
    for name in ("supervisor.log", "web-8001.log", "beat-schedule.db", "locust-17.log", *foreign):
        (folder.path / name).mkdir() if name.endswith("/") else (folder.path / name).touch()
    (folder.path / "postgres" / "data").mkdir(parents=True)
    for wheel in (postgres.WHEEL, valkey.WHEEL, etcd.WHEEL):
        wheel._copy(folder.path).mkdir()
    with pytest.raises(ServerError, match=named):
        folder.delete()
    left = {entry.name for entry in folder.path.iterdir()}
    assert left == {name.rstrip("/") for name in foreign} | {folder.ownership.owner_file.name}

    for name in foreign:
        (folder.path / name).rmdir() if name.endswith("/") else (folder.path / name).unlink()
    for _ in range(2):
        folder.delete()
        assert not folder.path.exists()


def test_a_folder_that_another_process_creates_at_the_same_time_is_ours(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.path.mkdir(mode=0o700)
    exists = Path.exists

    def created_just_now(path: Path) -> bool:
        found = exists(path)
        if path == folder.ownership.owner_file:
            path.touch()
        return found

    monkeypatch.setattr(Path, "exists", created_just_now)
    folder.create()


def test_the_secret_key_is_private_and_lasts(folder: RunFolder, other_folder: RunFolder) -> None:
    key = folder.secret_key()
    assert len(key) >= 50
    assert RunFolder(folder.path).secret_key() == key != other_folder.secret_key()
    assert mode(folder.path / "secret-key") == 0o600


def test_a_full_disk_is_reported_and_leaves_no_file_that_is_trusted_later(folder: RunFolder) -> None:
    said, _ = run_python(FULL_DISK, folder.path).communicate()
    key, ports, *afterwards = said.splitlines()
    assert key.startswith(f"The run folder {folder.path} cannot be used: the file secret-key in it cannot be used (")
    assert ports == "File too large"
    assert afterwards == ["True 3", "etcd.ports last-unit.owner secret-key"]


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs Linux to see who waits for a lock")
def test_a_process_waits_for_a_secret_key_that_is_being_written(folder: RunFolder) -> None:
    folder.create()
    with (folder.path / "secret-key").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        reader = run_python("print(RunFolder(path).secret_key())", folder.path)
        wait_for(lambda: f"-> FLOCK  ADVISORY  WRITE {reader.pid} " in Path("/proc/locks").read_text())
        file.write("written by the first")
    assert reader.communicate()[0] == "written by the first\n"


def test_ownership_ends_with_its_process_even_if_another_has_its_id(folder: RunFolder) -> None:
    folder.create()
    holder = run_python(HOLD, folder.path)
    assert holder.stdout.readline() == "held\n"
    assert not folder.ownership.take()
    with pytest.raises(ServerError, match="stop them first"):
        folder.delete()
    assert folder.ownership.owner() == ownership.Owner(holder.pid, ("valkey",))
    holder.kill()
    holder.wait()
    assert folder.ownership.owner() is None
    assert folder.ownership.take()
    folder.ownership.release()
    assert folder.ownership.owner() is None
    assert folder.ownership.take(["postgres"])  # Another process gets the id of the owner.
    folder.ownership.owner_file.write_text(f"{os.getpid()} 1 postgres\n")
    assert folder.ownership.owner() == ownership.Owner(None, ())


def test_ownership_of_a_deleted_folder_does_not_count(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.create()
    flock = fcntl.flock

    def replace_folder_first(file: int, kind: int) -> None:
        folder.path.rename(f"{folder.path}-old")
        folder.create()
        flock(file, kind)

    monkeypatch.setattr(ownership.fcntl, "flock", replace_folder_first)
    assert not folder.ownership.take()
    monkeypatch.undo()
    assert folder.ownership.take()
    RunFolder(Path(f"{folder.path}-old")).delete()
