"""The README, CONTRIBUTING and the pages of the documentation, and how to run what they show."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A fenced block of Markdown: its language and its text."""


def finish(*command: str, **more: str) -> str:
    """Run a command to its end and return what it prints; fail if its status is not 0."""
    done = subprocess.run(
        [str(shutil.which(command[0])), *command[1:]],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
