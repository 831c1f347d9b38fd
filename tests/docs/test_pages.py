"""README and docs name only files, log lines and problem types that exist."""

from __future__ import annotations

import re

from shop.api.problems import PROBLEMS
from tests.docs.pages import BLOCK, PAGES, ROOT

LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#\s]+)")
FOLDERS = "shop|inventory|locking|lab|loadtest|servers|tests|tools|docs|observe|[.]ci|[.]github"
PATH = re.compile(rf"(?<![\w/.:])((?:{FOLDERS})/[\w./-]*\w)")
PLACEHOLDER = re.compile(r"[\w./-]*<\w+>[\w./-]*")


def test_every_link_to_a_file_leads_to_one() -> None:
    links = [(page, link) for page, text in PAGES.items() for link in LINK.findall(BLOCK.sub("", text))]
    assert links
    assert [(page, link) for page, link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_every_path_in_the_text_exists() -> None:
    paths = {(page, path) for page, text in PAGES.items() for path in PATH.findall(PLACEHOLDER.sub("", text))}
    assert paths
    assert [(page, path) for page, path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_line_of_the_log_is_in_the_source() -> None:
    rows = [row for row in PAGES["docs/log.md"].splitlines() if row.startswith("| `")]
    shown = [line for row in rows for line in re.findall("`([^`]+)`", row.split(" | ")[0])]
    source = "".join(
        file.read_text() for room in ("shop", "inventory", "locking") for file in (ROOT / room).rglob("*.py")
    )
    parts = {part.strip(" :,") for line in shown for part in line.split("…")} - {""}
    assert len(shown) > 15
    assert sorted(part for part in parts if part not in source) == []


def test_the_table_of_problem_types_is_complete_and_ordered_by_status() -> None:
    table = PAGES["docs/api.md"].partition("## Problem types")[2]
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| .* \| (\d*) ?\|$", table, re.MULTILINE)
    known = {(each.slug, str(each.status), str(each.retry_after or "")) for each in PROBLEMS.values()}
    assert set(rows) == known
    assert [status for _, status, _ in rows] == sorted(status for _, status, _ in rows)


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 120
