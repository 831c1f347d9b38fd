"""The repository uses plain words: people are "they", and each thing has one name."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READ = (".py", ".md", ".lua", ".html", ".js", ".toml", ".yml", ".po")
NOT_OURS = ("CODE_OF_CONDUCT.md", "lab/static/lab/htmx", "tests/lab/vendor/", "lab/claims/", "tests/test_words.py")
PERSONS = re.compile(r"\b(?:he|his|him|himself)\b", re.IGNORECASE)
OLD_NAMES = re.compile(
    r"\b(?:Draft|Trial|[Tt]ally|Stage|keeper|leftovers|tend_sales|set_aside|end_leftovers|LAB_STAGES"
    r"|LineWorkload|replayed\(before|night\.md|which\.py|keeping\.py)\b|--events\b"
)
SECOND_READING = re.compile(r"(?:\b|_)anew(?:\b|_)|\bof (?:ours|theirs)\b")
"""Phrases that readers had to read twice: "again" and the name of the thing are plain."""
OLD_CLASSES = re.compile(r"^class (?:Together|Ticket|Click|Line|Entry|Session|Refused|Point)\b", re.MULTILINE)


ROOMS = ("locking/", "inventory/", "shop/", "lab/", "loadtest/", "servers/")
CLASS = re.compile(r"^class ([A-Z]\w*)", re.MULTILINE)
TWICE = {
    "Command",  # Django looks for a class of this name in each management command.
    "Migration",  # Django looks for a class of this name in each migration.
    # Flawed locks in the lab have the names of the sound locks that they break.
    "ProcessLock",
    "ThreadLock",
    "Watchdog",
    # Protocols of the explorer, and the classes of the lab that implement them.
    "Experiment",
    "VirtualClock",
}
"""Names that more than one class may have."""


def texts() -> dict[str, str]:
    command = ["git", "ls-files"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    names = [name for name in listed if name.endswith(READ) and not name.startswith(NOT_OURS)]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).exists()}


def found(pattern: re.Pattern[str], *, without: str = "") -> list[str]:
    return [
        f"{name}: {match[0]}" for name, text in texts().items() if name != without for match in pattern.finditer(text)
    ]


def test_a_person_is_they_and_phrases_that_were_read_twice_do_not_come_back() -> None:
    assert found(PERSONS) == []
    assert PERSONS.search("what he is told")
    assert found(SECOND_READING) == []
    assert len(SECOND_READING.findall("a fault of ours, read anew, test_it_is_opened_anew_by")) == 3


def test_a_thing_has_one_name() -> None:
    assert found(OLD_NAMES, without="CHANGELOG.md") == []
    assert OLD_NAMES.search("a Draft")
    assert found(OLD_CLASSES) == []
    assert OLD_CLASSES.search("class Line:")


def test_no_two_classes_have_one_name() -> None:
    classes = Counter(
        name
        for file, text in texts().items()
        if file.startswith(ROOMS) and file.endswith(".py")
        for name in CLASS.findall(text)
    )
    assert {name for name, count in classes.items() if count > 1} == TWICE
