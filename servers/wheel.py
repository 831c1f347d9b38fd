"""Programs that come in PyPI wheels: where they are, or the copy of them that an unprivileged user may run."""

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
    """The programs of the distribution `name`, whose package is `package`; `needs` is what they need to run.

    `needs` and `program` are paths as below site-packages; `program` may be a pattern.
    """

    name: str
    package: str
    needs: tuple[str, ...]
    program: str

    def path(self, run_folder: Path) -> Path:
        """Where the program is: in site-packages, or when we are root in a copy that `unpack` makes."""
        installed = self._site_packages()
        program = next(installed.glob(self.program))
        return self._copy(run_folder) / program.relative_to(installed) if unprivileged_user() else program

    def unpack(self, run_folder: Path) -> None:
        """When we are root, copy what is needed into the run folder: another user may be unable to read site-packages.

        The copy has the shape of the original, as programs look for their libraries beside themselves. It is made whole
        or not at all, whoever else does the same.
        """
        copy = self._copy(run_folder)
        if unprivileged_user() is None or copy.exists():
            return
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=run_folder))
        for part in self.needs:
            shutil.copytree(self._site_packages() / part, unfinished / part, ignore=shutil.ignore_patterns("*.[ah]"))
        for entry in (unfinished, *unfinished.rglob("*")):
            entry.chmod(0o755)
        with suppress(OSError):
            unfinished.rename(copy)
        shutil.rmtree(unfinished, ignore_errors=True)

    def _copy(self, run_folder: Path) -> Path:
        return run_folder / f"{self.name}-{version(self.name)}"

    def _site_packages(self) -> Path:
        spec = find_spec(self.package)
        if spec is None or spec.origin is None:
            raise ServerError(f"The package {self.name} is missing: pip install --require-hashes -r requirements.txt")
        return Path(spec.origin).parent.parent
