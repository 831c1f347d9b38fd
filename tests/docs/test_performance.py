"""The table of goals in docs/performance.md has the figures of the stored comparison."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tools import performance_table

ROW = {"orders_per_s": 200.0, "cpu_ms": 3.0, "refusals_per_s": 400.0, "refusal_cpu_ms": 1.5}
REPORT = {
    "machine": {"cpus": 2, "clients": 32, "rounds": 5},
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


def test_the_table_shows_what_was_measured() -> None:
    assert performance_table.main(["--check"]) == 0, "make refresh"


def test_another_measurement_makes_the_table_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
