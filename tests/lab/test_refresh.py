"""`manage.py lab` lists outdated results, measures them again and stores them. An interrupted refresh can continue."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from lab.claims import refresh, witness
from lab.claims.refresh import Result, out_of_date
from lab.ladder.catalogue import LADDER

FLAWED = ("no-lock", "setnx", "get-compare-del")


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unhashed: None) -> Path:
    """A copy of the stored verdicts, all up to date, without those of the rungs in `FLAWED`."""
    path = tmp_path / "verdicts.json"
    shutil.copy(witness.VERDICTS, path)
    monkeypatch.setattr(witness, "VERDICTS", path)
    lines = {slug: {**line, "source": slug} for slug, line in json.loads(path.read_text()).items()}
    path.write_text(json.dumps({slug: line for slug, line in lines.items() if slug not in FLAWED}))
    return path


def broken(slug: str) -> dict[str, Any]:
    return {"rung": slug, "claim": LADDER[slug].claim, "verdict": "broken", "replays": 20, "broken": 20}


def status(capsys: pytest.CaptureFixture[str], code: int) -> dict[str, Any]:
    with pytest.raises(SystemExit, match=str(code)) if code else nullcontext():
        call_command("lab", "status", "--json", "--only", "verdict")
    said: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return said


def test_the_status_lists_what_is_out_of_date(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(capsys, 1) == {"out_of_date": [f"verdict {slug}" for slug in FLAWED]}
    for slug in FLAWED:
        witness.store_verdict(LADDER[slug], {"verdict": "broken"})
    assert status(capsys, 0) == {"out_of_date": []}


def test_an_interrupted_refresh_goes_on_where_it_stopped(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def in_processes(job: str, slugs: Sequence[str], processes: int) -> Iterator[dict[str, Any]]:
        asked.append(slugs)
        yield broken(slugs[0])
        if len(asked) == 1:
            raise KeyboardInterrupt
        yield from map(broken, slugs[1:])

    monkeypatch.setattr(refresh, "in_processes", in_processes)
    with pytest.raises(SystemExit):
        call_command("lab", "refresh", "--only", "verdict")
    call_command("lab", "refresh", "--only", "verdict")
    assert asked == [list(FLAWED), list(FLAWED[1:])]
    assert out_of_date(["verdict"]) == []


def test_a_claim_that_is_not_reproduced_is_not_stored(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {slug: broken(slug) for slug in FLAWED} | {"setnx": {**broken("setnx"), "verdict": "held", "broken": 0}}
    monkeypatch.setattr(refresh, "in_processes", lambda job, slugs, processes: (lines[slug] for slug in slugs))
    with pytest.raises(CommandError, match="verdict setnx: The claim was not reproduced"):
        call_command("lab", "refresh", "--only", "verdict")
    assert out_of_date(["verdict"]) == [Result("verdict", "setnx")]
