"""The README, CONTRIBUTING and the pages of the documentation, and how to run what they show."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A fenced block of Markdown: its language and its text."""


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def plain(markdown: str) -> str:
    """Return the text that Markdown shows to readers, in lower case."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown)
    return " ".join(re.sub(r"[`*]", "", shown).replace("“", '"').replace("”", '"').casefold().split())


def section(page: str, anchor: str) -> str:
    """Return the text below the heading with this anchor, up to the next heading, without blocks of code."""
    parts = re.split(r"^(?=#+ )", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)
    (found,) = [part for part in parts if anchor in anchors(part)]
    return found.partition("\n")[2]


def leads_to(address: str, pages: Mapping[str, str] = PAGES) -> str:
    """Return the section of the documentation at an address below docs/, such as `incidents.md#redis-is-away`."""
    page, _, anchor = address.partition("#")
    return section(pages[f"docs/{page}"], anchor)


def exists(address: str, pages: Mapping[str, str] = PAGES) -> bool:
    """Return whether the page and the heading of an address below docs/ exist."""
    page, _, anchor = address.partition("#")
    return anchor in anchors(pages.get(f"docs/{page}", ""))


def moved(words: str, others: str) -> dict[str, str]:
    """Return all pages with `others` in place of `words`, and with `words` at the end of each page.

    Negative controls use these pages: words in another section do not count.
    """
    assert any(words in text for text in PAGES.values())
    return {page: f"{text.replace(words, others)}\n{words}\n" for page, text in PAGES.items()}


OF_MAKE = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS"}
"""Variables that would pass the ARGS of `make test` to each make that a test runs."""


def finish(*command: str, **more: str) -> str:
    """Run a command to its end and return its output. Fail if its exit status is not 0."""
    ours = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    done = subprocess.run(
        [str(shutil.which(command[0])), *command[1:]],
        cwd=ROOT,
        env={**ours, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
