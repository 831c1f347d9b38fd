"""The commands `ladder`, `explore` and `replay`: what they print, store and refuse."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from lab.claims import verify, witness
from lab.claims.finding import REPLAYS
from lab.ladder.catalogue import LADDER
from lab.management.command import schedule, schedule_text
from lab.sandbox.sandbox import Sandbox
from tests.lab.schedule_support import manage

pytestmark = pytest.mark.slow

NO_ZOOKEEPER = "ZooKeeper is not installed: apt-get install zookeeper default-jre-headless"


def test_verify_reports_each_claim_as_json(sandbox: Sandbox) -> None:
    done = manage("ladder", "--verify", "--json", "get-then-set", "guarded-update")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    flawed, sound = said["rungs"]
    assert said["schedules_per_s"] > 0
    assert (flawed["rung"], flawed["claim"], flawed["verdict"]) == ("get-then-set", "flawed", "broken")
    assert (flawed["replays"], flawed["broken"]) == (20, 20)
    assert (sound["rung"], sound["claim"], sound["verdict"]) == ("guarded-update", "sound", "held")
    assert (sound["exhausted"], sound["clients"], sound["preemptions"], sound["faults"]) == (True, 2, 2, 1)
    keys = "rung track claim verdict replays broken schedules exhausted clients preemptions faults seconds"
    assert {*keys.split()} == {*flawed} == {*sound} - {"also", "completed", "sampled"}
    (crowd,) = sound["also"]  # Its search may be incomplete: Postgres decides which of two waiters it serves first.
    assert (crowd["clients"], crowd["preemptions"], crowd["faults"]) == (3, 1, 1)


@pytest.mark.parametrize(("broken", "replays"), [(None, 0), (3, REPLAYS)])
def test_a_flawed_rung_that_is_not_reproduced_has_a_complete_line(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, broken: int | None, replays: int
) -> None:
    """The report is complete for a flawed rung without a witness, or with one that breaks it only sometimes."""
    if broken is None:
        monkeypatch.setattr(verify, "load", lambda slug: None)
    monkeypatch.setattr(verify, "breaks", lambda *arguments: broken)
    line = verify.check("no-lock", sandbox)
    figures = [line[name] for name in ("verdict", "broken", "replays", "schedules")]
    assert figures == ["held", broken or 0, replays, replays]
    assert {"clients", "preemptions", "faults"} < {*line}
    assert not verify.reproduced(line)


def test_a_missing_server_is_named_and_other_rungs_are_checked(sandbox: Sandbox, tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path)}  # without Java on the PATH
    verify_both = "ladder", "--verify", "zookeeper", "get-then-set"
    done = manage(*verify_both, "--json", **nothing)
    assert done.returncode == 1
    assert f"Not reproduced: zookeeper ({NO_ZOOKEEPER})." in done.stderr
    assert "Traceback" not in done.stderr
    checked, missing = json.loads(done.stdout.splitlines()[-1])["rungs"]
    assert (checked["rung"], checked["verdict"], checked["broken"]) == ("get-then-set", "broken", 20)
    assert (missing["rung"], missing["claim"], missing["verdict"]) == ("zookeeper", "sound", "missing")
    assert (missing["schedules"], missing["exhausted"]) == (0, False)
    assert "ZooKeeper is not installed" in missing["missing"]
    assert {*missing} == {*checked, "missing"}
    table = manage(*verify_both, **nothing)
    assert table.returncode == 1
    assert "missing" in table.stdout
    assert "apt-get install zookeeper" in table.stdout


def test_nothing_is_stored_without_a_server(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = witness.STRESS.read_bytes()
    done = manage("ladder", "--stress", "zookeeper", "--tries", "1", PATH=str(tmp_path))
    assert done.returncode == 1
    assert f"Not run: zookeeper ({NO_ZOOKEEPER})." in done.stderr
    assert "Traceback" not in done.stderr
    assert witness.STRESS.read_bytes() == before
    for command in (("explore", "zookeeper"), ("replay", "zookeeper", "A,B")):
        done = manage(*command, PATH=str(tmp_path))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(f"CommandError: {NO_ZOOKEEPER}\n")
    monkeypatch.setattr(witness, "VERDICTS", tmp_path / "verdicts.json")
    verify.keep(verify.unchecked("zookeeper", "ZooKeeper is not installed"))
    assert witness.verdict("zookeeper") is None


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("explore", "no-lock"), 0, "breaks the invariant “conserved”"),
        (("explore", "no-lock", "--preemptions", "0"), 1, "held. All"),
        (("explore", "nothing"), 2, "There is no rung nothing"),
        (("replay", "no-lock"), 0, "Broken invariant: conserved"),
        (("replay", "no-lock", "A,Z"), 2, "'Z' cannot come next"),
        (("replay", "no-lock", " A, B ,B,A"), 0, "Broken invariant: conserved"),
        (("replay", "no-lock", "A,B*2,A"), 0, "Broken invariant: conserved"),
        (("replay", "no-lock", "A,B,C,C,B,A"), 2, "'C' cannot come next"),
        (("replay", "no-lock", "A,B,C,C,B,A", "--clients", "3"), 0, "Broken invariant: conserved"),
        (("replay", "no-lock", "--on", "renewal"), 0, "Nothing is broken"),
        (("ladder",), 0, "get-compare-del"),
    ],
)
def test_output_and_status(sandbox: Sandbox, arguments: tuple[str, ...], status: int, text: str) -> None:
    done = manage(*arguments)
    assert text in done.stdout + done.stderr
    assert done.returncode == status


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("explore", "no-lock", "--clients", "0"), "--clients: must be a number from 1 to 6, not 0"),
        (("explore", "no-lock", "--clients", "9"), "--clients: must be a number from 1 to 6, not 9"),
        (("explore", "fence", "--schedules", "0"), "--schedules: must be a number from 1, not 0"),
        (("explore", "fence", "--preemptions", "-1"), "--preemptions: must be a number from 0, not -1"),
        (("explore", "fence", "--faults", "one"), "--faults: must be a number from 0, not one"),
        (("replay", "no-lock", "--on", "nothing"), "There is no rung nothing"),
        (("replay", "no-lock", "A,*3"), "schedule: '[*]3' has no choice before the [*], as in B[*]3"),
        (("replay", "no-lock", "A,B*0"), "schedule: must be a number from 1 to 1000, not 0"),
        (("ladder", "nothing", "--verify"), "There is no rung nothing"),
        (("ladder", "renewal", "--verify", "--schedules", "5"), "only with --deep"),
        (("ladder", "renewal", "--verify", "--tries", "5"), "only with --stress"),
        (("ladder", "renewal", "--stress", "--tries", "0"), "--tries: must be a number from 1, not 0"),
        *((("ladder", "no-lock", "--verify", "--processes", number), "from 1 to 15") for number in ("0", "16")),
        (("ladder", "--deep", "no-lock"), "--deep searches sound rungs, and none of these is one"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        call_command(*arguments)


def test_the_hint_of_explore_replays_what_it_found(sandbox: Sandbox) -> None:
    choices = ("A", "B", "B", "crash A", "C", "C", "C")
    assert schedule_text(choices) == "A,B,B,crash A,C*3"
    assert schedule(schedule_text(choices)) == choices
    found = manage("explore", "setnx", "--clients", "3")
    assert found.returncode == 0, found.stderr
    python, program, *arguments = shlex.split(found.stdout.splitlines()[-1].partition("See each step: ")[2])
    assert (Path(python).name, Path(program).name) == (Path(sys.executable).name, "manage.py")
    assert "C" in arguments[2]
    shown = manage(*arguments)
    assert shown.returncode == 0, shown.stderr
    assert f"Broken invariant: {LADDER['setnx'].breaks}" in shown.stdout


def test_a_stored_verdict_is_out_of_date_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "VERDICTS", tmp_path / "verdicts.json")
    assert witness.verdict("renewal") is None
    line = {"rung": "renewal", "claim": "sound", "verdict": "held", "schedules": 111, "exhausted": True, "clients": 2}
    line |= {"preemptions": 2, "faults": 1}
    verify.keep({**line, "deep": [{"schedules": 5}]})
    verify.keep(line)
    stored = witness.verdict("renewal") or {}
    assert (stored["schedules"], stored["deep"], stored["outdated"]) == (111, [{"schedules": 5}], False)
    monkeypatch.setattr(witness, "behaviour_of_verdict", lambda slug: "another")
    assert (witness.verdict("renewal") or {})["outdated"]
    verify.keep(line)
    assert "deep" not in (witness.verdict("renewal") or {}), "as it belongs to another source"
