"""README and docs name only files, log lines and problem types that exist, and show what was measured."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from shop.api.problems import PROBLEMS
from tests.docs.pages import BLOCK, PAGES, ROOT
from tools import flame_graph, performance_table

LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#\s]+)")
FOLDERS = "shop|inventory|locking|lab|loadtest|servers|tests|tools|docs|observe|[.]ci|[.]github"
PATH = re.compile(rf"(?<![\w/.:])((?:{FOLDERS})/[\w./-]*\w)")
PLACEHOLDER = re.compile(r"[\w./-]*<\w+>[\w./-]*")


def test_every_link_and_every_path_leads_to_a_file() -> None:
    links = [(page, link) for page, text in PAGES.items() for link in LINK.findall(BLOCK.sub("", text))]
    assert links
    assert [(page, link) for page, link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
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


ROW = {"orders_per_s": 200.0, "cpu_ms": 3.0, "refusals_per_s": 400.0, "refusal_cpu_ms": 1.5}
REPORT = {
    "machine": {"cpus": 2, "clients": 32, "rounds": 5, "steal": 0.1},
    "plain": {"requests_per_s": 400.0, "cpu_ms": 2.0},
    "peer:redis-py-lock": {"orders_per_s": 50.0},
    "strategies": {
        "group-commit": ROW,
        **{key: {**ROW, "orders_per_s": 100.0} for key in ("guarded-update", "redis-lock")},
    },
    "cost_growth": [{"cpu_ms": 3.0}, {"cpu_ms": 4.5}],
    "redis_lock_alone_per_s": 100.0,
    "pgbench_hot_row_per_s": 400.0,
    "queue_saved_per_s": 1000.0,
    "copy_per_s": 10_000.0,
}


def test_another_measurement_makes_the_table_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert performance_table.main(["--check"]) == 0, "make refresh"
    page, stored = tmp_path / "performance.md", tmp_path / "comparison.json"
    shutil.copy(performance_table.PAGE, page)
    comparison = json.loads(performance_table.STORED.read_text())
    comparison["strategies"]["report"] = REPORT
    stored.write_text(json.dumps(comparison))
    for name, value in (("ROOT", tmp_path), ("PAGE", page), ("STORED", stored)):
        monkeypatch.setattr(performance_table, name, value)
    assert performance_table.main(["--check"]) == 1
    assert performance_table.main([]) == 0
    assert performance_table.main(["--check"]) == 0
    table = page.read_text()
    assert "| fastest durable strategy (`group-commit`), orders/s ÷ plain | 0.50 | 0.75 | 1.0 | **missed** |" in table
    assert "| refusals/s ÷ plain | 1.00 | 1.0 | 1.5 | met |" in table


def test_a_flame_graph_has_a_box_for_each_function_of_a_request() -> None:
    app = "Thread.run (threading.py:975);Application.__call__ (shop/runtime/wsgi.py:51)"
    recorded = f"{app};get (django/urls.py:1);a (x.py:1) 3\n{app};get (django/urls.py:2) 1\nWatcher.run (x.py:1) 9\n"
    boxes = re.findall(r'<title>(.*?)</title><rect x="0.0" y="\d+" width="(.*?)"', flame_graph.draw(recorded))
    assert boxes == [
        ("Application.__call__ (shop/runtime/wsgi.py): 100.0%", "1200.0"),
        ("get (django/urls.py): 100.0%", "1200.0"),
        ("a (x.py): 75.0%", "900.0"),
    ]
