"""Check that every supported platform and Python version can install the locked requirements from wheels.

    python tools/check_wheels.py

Prints one line for each platform and Python version. Exit status 1 if the requirements cannot be installed on one of
them. Needs `uv`, which asks the package index; installs nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt")
LINUX = ("3.11", "3.12", "3.13", "3.14")
MACOS = LINUX[1:]
"""Versions of Python on macOS. 3.11 is missing: Locust needs gevent, and gevent has no macOS wheel for Python 3.11."""

SUPPORTED: Mapping[str, tuple[str, ...]] = {
    "x86_64-manylinux_2_28": LINUX,
    "aarch64-manylinux_2_28": LINUX,
    "aarch64-apple-darwin": MACOS,
    "x86_64-apple-darwin": MACOS,
}
"""Versions of Python by platform. manylinux_2_28 means glibc 2.28, as in Debian 10 and RHEL 8."""


def refusal(uv: str, platform: str, version: str) -> str:
    """Return why a platform and version of Python cannot install the requirements; an empty string if it can."""
    with tempfile.TemporaryDirectory() as target:  # empty, so that nothing counts as installed
        command = [uv, "pip", "install", "--dry-run", "--quiet", "--only-binary", ":all:", "--target", target]
        command += ["--python-platform", platform, "--python-version", version]
        for name in REQUIREMENTS:
            command += ["--requirements", str(ROOT / name)]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
    return done.stderr.strip() or "uv gave no reason" if done.returncode else ""


def main() -> int:
    """Check every supported platform with each of its versions of Python.

    Returns:
        The exit status.
    """
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        sys.stderr.write("uv is not installed. Install it with `pip install uv`.\n")
        return 1
    failed = False
    for platform, versions in SUPPORTED.items():
        for version in versions:
            why = refusal(uv, platform, version)
            failed = failed or bool(why)
            sys.stdout.write(f"{platform:24} {version:6} {why or 'ok'}\n")
            sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
