"""Programs that are installed from PyPI wheels."""

import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from servers.errors import ServerError
from servers.folder import unprivileged_user


@dataclass(frozen=True)
class Wheel:
    """A program in an installed wheel.

    Args:
        name: the distribution.
        package: its import name.
        needs: paths below site-packages that the program needs to run.
        program: path of the program below site-packages; may be a glob pattern.
    """

    name: str
    package: str
    needs: tuple[str, ...]
    program: str

    def path(self, run_folder: Path) -> Path:
        """Return the path of the program in site-packages. As root, return its path in the copy that `unpack` makes."""
        installed = self._site_packages()
        program = next(installed.glob(self.program))
        return self._copy(run_folder) / program.relative_to(installed) if unprivileged_user() else program

    def unpack(self, run_folder: Path) -> None:
        """As root, copy the program into the run folder, because the servers' user may be unable to read site-packages.

        The copy keeps the directory layout, because programs find their libraries by relative paths. A rename makes the
        whole copy visible in one step. So the copy is complete or absent, even if processes copy concurrently.
        """
        copy = self._copy(run_folder)
        if unprivileged_user() is None or copy.exists():
            return
        unfinished = None
        try:
            unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=run_folder))
            for part in self.needs:
                ignored = shutil.ignore_patterns("*.[ah]")
                shutil.copytree(self._site_packages() / part, unfinished / part, ignore=ignored)
            for entry in (unfinished, *unfinished.rglob("*")):
                entry.chmod(0o755)
            with suppress(OSError):
                unfinished.rename(copy)
        except OSError as error:
            raise ServerError(f"{self.name} cannot be copied into {run_folder}: {error}") from error
        finally:
            if unfinished is not None:
                shutil.rmtree(unfinished, ignore_errors=True)

    def _copy(self, run_folder: Path) -> Path:
        return run_folder / f"{self.name}-{version(self.name)}"

    def _site_packages(self) -> Path:
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:
            raise ServerError(f"The package {self.name} is missing: pip install --require-hashes -r requirements.txt")
        return Path(spec.origin).parent.parent
