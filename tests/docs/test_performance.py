"""The table of goals in docs/performance.md is that of the stored comparison."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tools import performance_table


def test_the_table_shows_what_was_measured() -> None:
    assert performance_table.main(["--check"]) == 0


def test_another_measurement_makes_the_table_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, stored = tmp_path / "performance.md", tmp_path / "comparison.json"
    shutil.copy(performance_table.PAGE, page)
    comparison = json.loads(performance_table.STORED.read_text())
    comparison["strategies"]["report"]["plain"]["cpu_ms"] *= 2
    stored.write_text(json.dumps(comparison))
    for name, value in (("ROOT", tmp_path), ("PAGE", page), ("STORED", stored)):
        monkeypatch.setattr(performance_table, name, value)
    assert performance_table.main(["--check"]) == 1
    assert performance_table.main([]) == 0
    assert performance_table.main(["--check"]) == 0
