"""Run folders that are removed after each test, together with all processes that name them."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import RunFolder
from tests.servers.support import kill, processes_naming, server_processes


@pytest.fixture
def outer() -> Iterator[Path]:
    """A folder that other users may enter. Its path is short enough for sockets in it."""
    path = Path(tempfile.mkdtemp(prefix="lu-"))
    path.chmod(0o755)
    yield path
    kill(processes_naming(path))  # A failed test may have left these.
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def folder(outer: Path) -> Iterator[RunFolder]:
    """A run folder that does not exist yet."""
    folder = RunFolder(outer / "run")
    yield folder
    kill(server_processes(folder))


@pytest.fixture
def other_folder(outer: Path) -> Iterator[RunFolder]:
    folder = RunFolder(outer / "other")
    yield folder
    kill(server_processes(folder))
