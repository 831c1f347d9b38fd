"""The run folder refuses what servers or other users could turn against us."""

import fcntl
import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest

from servers import RunFolder, ServerError, etcd, postgres, valkey
from servers import ownership as claim_module
from servers.folder import CHECKOUT
from tests.servers.support import run_python
from tests.waiting import wait_for

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="needs root")
SECRET = """
import sys
from pathlib import Path
from servers import RunFolder
print(RunFolder(Path(sys.argv[1])).secret_key())
"""
HOLD = """
import signal, sys
from pathlib import Path
from servers import RunFolder
folder = RunFolder(Path(sys.argv[1]))
assert folder.claim.take(["valkey"])
print("held", flush=True)
signal.pause()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_default_is_one_folder_for_each_user_and_checkout_and_naming_it_makes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RUN_FOLDER", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/lu-nowhere")  # noqa: S108
    here = RunFolder.default().path
    monkeypatch.setattr("servers.folder.CHECKOUT", CHECKOUT / "another")
    assert here.parent == Path("/tmp/lu-nowhere")  # noqa: S108
    assert here.name.startswith(f"last-unit-{os.geteuid()}-")
    assert RunFolder.default().path != here
    assert not here.parent.exists()


def test_run_folder_in_the_environment_wins(monkeypatch: pytest.MonkeyPatch, folder: RunFolder) -> None:
    monkeypatch.setenv("RUN_FOLDER", str(folder.path))
    assert RunFolder.default().path == folder.path


def test_a_folder_that_is_made_lets_nobody_list_it(folder: RunFolder) -> None:
    folder.create()
    assert mode(folder.path) == (0o711 if ROOT else 0o700)


def test_an_empty_folder_of_ours_will_do_and_is_closed(folder: RunFolder) -> None:
    folder.path.mkdir()
    folder.path.chmod(0o777)
    folder.create()
    assert mode(folder.path) == (0o711 if ROOT else 0o700)


def test_a_path_too_long_for_a_socket_is_refused_and_one_byte_less_is_not(outer: Path) -> None:
    longest = outer / ("x" * (107 - len("/postgres/.s.PGSQL.5432") - len(str(outer)) - 1))
    with pytest.raises(ServerError, match=r"1 bytes too long for a socket.*RUN_FOLDER"):
        RunFolder(longest.with_name(longest.name + "x")).create()
    assert list(outer.iterdir()) == []
    RunFolder(longest).create()


@pytest.mark.parametrize("name", ["a,b", "$(touch x)", 'a"b', "`a`", "a\\b"])
def test_a_path_that_postgres_or_its_clients_would_misread_is_refused(outer: Path, name: str) -> None:
    with pytest.raises(ServerError, match="in a path"):
        RunFolder(outer / name).create()
    assert list(outer.iterdir()) == []


def test_a_symbolic_link_is_refused_and_not_followed(outer: Path) -> None:
    target, link = outer / "target", outer / "link"
    target.mkdir()
    link.symlink_to(target)
    for action in (RunFolder(link).create, RunFolder(link).delete):
        with pytest.raises(ServerError, match="symbolic link"):
            action()
    assert list(target.iterdir()) == []


def test_a_file_in_its_place_is_refused(folder: RunFolder) -> None:
    folder.path.touch()
    with pytest.raises(ServerError, match="not a folder"):
        folder.create()


def test_a_missing_parent_is_a_clear_error(outer: Path) -> None:
    with pytest.raises(ServerError, match="No such file or directory"):
        RunFolder(outer / "missing" / "run").create()


def test_somebody_elses_folder_is_refused_and_left_as_it_is(folder: RunFolder) -> None:
    theirs = folder.path if ROOT else Path("/usr")
    if ROOT:
        theirs.mkdir(mode=0o755)
        os.chown(theirs, pwd.getpwnam("nobody").pw_uid, -1)
    before = mode(theirs)
    for action in (RunFolder(theirs).create, RunFolder(theirs).delete):
        with pytest.raises(ServerError, match="belongs to user"):
            action()
    assert mode(theirs) == before


def test_a_folder_in_use_for_something_else_is_refused_and_never_deleted(folder: RunFolder) -> None:
    folder.path.mkdir()
    thesis = folder.path / "thesis.tex"
    thesis.touch()
    for action in (folder.create, folder.delete):
        with pytest.raises(ServerError, match="in use for something else"):
            action()
    assert thesis.exists()


@as_root
def test_as_root_a_parent_that_the_servers_user_cannot_pass_is_refused_and_left_as_it_is(
    folder: RunFolder, outer: Path
) -> None:
    outer.chmod(0o700)
    with pytest.raises(ServerError, match=f"nobody, who cannot pass through {outer}"):
        folder.create()
    assert not folder.path.exists()
    assert mode(outer) == 0o700


def test_delete_removes_everything_and_says_nothing_when_there_is_nothing(folder: RunFolder) -> None:
    folder.secret_key()
    (folder.path / "postgres").mkdir()
    folder.delete()
    assert not folder.path.exists()
    folder.delete()


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (["thesis.tex"], "thesis.tex in it"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more in it"),
        (["photos/"], "photos in it"),
        (["web-8000.log/"], "web-8000.log in it"),
        (["postgres-backup.sql"], "postgres-backup.sql in it"),
    ],
    ids=["a file", "several", "a folder", "a folder with the name of a file of ours", "almost ours"],
)
def test_delete_leaves_what_somebody_else_has_put_there(folder: RunFolder, theirs: list[str], named: str) -> None:
    folder.secret_key()
    ours = ("keeper.log", "web-8001.log", "beat-schedule.db", "locust-17.log")
    for name in (*ours, *theirs):
        (folder.path / name).mkdir() if name.endswith("/") else (folder.path / name).touch()
    (folder.path / "postgres" / "data").mkdir(parents=True)
    with pytest.raises(ServerError, match=named):
        folder.delete()
    left = {entry.name for entry in folder.path.iterdir()}
    assert left == {name.rstrip("/") for name in theirs} | {folder.claim.note.name}

    for name in theirs:
        (folder.path / name).rmdir() if name.endswith("/") else (folder.path / name).unlink()
    folder.delete()
    assert not folder.path.exists()


def test_delete_knows_the_copies_of_every_program(folder: RunFolder) -> None:
    folder.create()
    for wheel in (postgres.WHEEL, valkey.WHEEL, etcd.WHEEL):
        wheel._copy(folder.path).mkdir()
    folder.delete()
    assert not folder.path.exists()


def test_delete_is_refused_while_somebody_runs_the_servers(folder: RunFolder) -> None:
    folder.create()
    assert folder.claim.take()
    with pytest.raises(ServerError, match="stop them first"):
        RunFolder(folder.path).delete()
    assert folder.path.exists()


def test_the_secret_key_stays_the_same_and_only_its_owner_may_read_it(folder: RunFolder) -> None:
    key = folder.secret_key()
    assert len(key) >= 50
    assert RunFolder(folder.path).secret_key() == key
    assert mode(folder.path / "secret-key") == 0o600


def test_who_makes_it_between_two_of_our_looks_is_no_stranger(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.path.mkdir(mode=0o700)
    exists = Path.exists

    def slowly(path: Path) -> bool:
        said = exists(path)
        if path == folder.claim.note:
            path.touch()
        return said

    monkeypatch.setattr(Path, "exists", slowly)
    folder.create()


def test_another_folder_has_another_secret_key(folder: RunFolder, other_folder: RunFolder) -> None:
    assert folder.secret_key() != other_folder.secret_key()


def test_processes_that_ask_at_once_get_the_same_secret_key(folder: RunFolder) -> None:
    askers = [run_python(SECRET, folder.path) for _ in range(4)]
    assert len({asker.communicate()[0] for asker in askers}) == 1


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs Linux to see who waits for a lock")
def test_who_asks_while_the_secret_key_is_being_made_waits_for_it(folder: RunFolder) -> None:
    folder.create()
    with (folder.path / "secret-key").open("w") as being_made:
        fcntl.flock(being_made, fcntl.LOCK_EX)
        asker = run_python(SECRET, folder.path)
        wait_for(lambda: f"-> FLOCK  ADVISORY  WRITE {asker.pid} " in Path("/proc/locks").read_text())
        being_made.write("made by the first")
    assert asker.communicate()[0] == "made by the first\n"


def test_a_claim_belongs_to_one_process_until_it_ends_however_it_ends(folder: RunFolder) -> None:
    folder.create()
    holder = run_python(HOLD, folder.path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert not folder.claim.take()
    assert folder.claim.owner() == claim_module.Owner(holder.pid, ("valkey",))
    holder.kill()
    holder.wait()
    assert folder.claim.owner() is None
    assert folder.claim.take()


def test_a_claim_makes_no_run_folder_of_a_strangers(folder: RunFolder) -> None:
    folder.path.mkdir()
    with pytest.raises(FileNotFoundError):
        folder.claim.take()
    assert list(folder.path.iterdir()) == []
    folder.create()
    assert folder.claim.take()


def test_looking_for_the_owner_leaves_the_claim_free(folder: RunFolder) -> None:
    folder.create()
    assert folder.claim.owner() is None
    assert folder.claim.take()
    folder.claim.release()
    assert folder.claim.owner() is None


def test_a_process_that_got_the_number_of_an_earlier_owner_is_not_taken_for_it(folder: RunFolder) -> None:
    folder.create()
    assert folder.claim.take(["postgres"])
    folder.claim.note.write_text(f"{os.getpid()} 1 postgres\n")
    assert folder.claim.owner() == claim_module.Owner(None, ())


def test_a_claim_on_a_folder_that_was_deleted_meanwhile_does_not_count(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.create()
    lock = fcntl.flock

    def lock_after_somebody_replaced_the_folder(file: int, kind: int) -> None:
        folder.path.rename(f"{folder.path}-old")
        folder.create()
        lock(file, kind)

    monkeypatch.setattr(claim_module.fcntl, "flock", lock_after_somebody_replaced_the_folder)
    assert not folder.claim.take()
    monkeypatch.undo()
    assert folder.claim.take()
    RunFolder(Path(f"{folder.path}-old")).delete()
