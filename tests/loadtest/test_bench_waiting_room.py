"""The waiting room's benchmark measures rooms of any size and loses no order of a crowd."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

import pytest

from loadtest.bench import waiting_room
from shop.waiting import room
from tests.http_server import serving
from tests.loadtest.conftest import CHECKOUT, bench, report_of

BURST = {"conserved": True, "bought": 5, "buyers": 5}
CROWD = {
    waiting_room.WITHOUT: {**BURST, "order": {"p99_ms": 8000.0, "busy_share": 0.7}},
    waiting_room.SHARED: {**BURST, "order": {"p99_ms": 4000.0, "busy_share": 0.01}},
    waiting_room.SEPARATE: {**BURST, "order": {"p99_ms": 4000.0, "busy_share": 0.01}},
}


@pytest.mark.slow
@pytest.mark.parametrize("entrants", [1000, 12_000], ids="{:,}".format)
def test_the_memory_of_a_room_is_within_its_bound(entrants: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with a bound of one byte per customer, the same room misses both memory goals."""

    def reached() -> list[bool]:
        return [*waiting_room.goals({"large_room": waiting_room.measure_large_room(entrants), "crowd": CROWD}).values()]

    assert reached() == [True] * 5
    monkeypatch.setattr(waiting_room, "EMPTY_ROOM", 0)
    monkeypatch.setattr(room, "PLACE_BYTES", 1)
    monkeypatch.setattr(room, "TURN_BYTES", 1)
    assert reached() == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("large_room", {"memory_mb": 120.3}),
        ("large_room", {"turn_bytes_each": 80.1}),
        (waiting_room.SHARED, {"conserved": False}),
        (waiting_room.SEPARATE, {"bought": 4}),
        (waiting_room.SHARED, {"order": {"p99_ms": 4000.0, "busy_share": 0.011}}),
        (waiting_room.SHARED, {"order": {"p99_ms": 4001.0, "busy_share": 0.0}}),
        (waiting_room.SEPARATE, {"order": {"p99_ms": 4000.0, "busy_share": 0.011}}),
        (waiting_room.SEPARATE, {"order": {"p99_ms": 4001.0, "busy_share": 0.0}}),
    ],
)
def test_a_goal_is_missed_by_what_misses_it(part: str, changed: dict[str, Any]) -> None:
    sizes = {"entrants": 1_000_000, "memory_mb": 120.2, "memory_bound_mb": 120.2, "turn_bytes_each": 80.0}
    parts: dict[str, Any] = {"large_room": {**sizes, "turn_bound": 80}, **CROWD}

    def missed() -> int:
        report = {"large_room": parts["large_room"], "crowd": {name: parts[name] for name in CROWD}}
        return list(waiting_room.goals(report).values()).count(False)

    assert missed() == 0
    parts[part] = {**parts[part], **changed}
    assert missed() == 1


class BusyAtFirst(BaseHTTPRequestHandler):
    """A shop without a waiting room that refuses the first attempt of each order."""

    keys: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.keys[self.headers["Idempotency-Key"]] += 1
        busy = self.keys[self.headers["Idempotency-Key"]] == 1
        self.send_response(503 if busy else 201)
        self.send_header("Content-Length", "2")
        if busy:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(b"{}")


def test_a_buyer_repeats_a_refused_order_under_the_same_key() -> None:
    with serving(BusyAtFirst) as port:
        url = f"http://127.0.0.1:{port}"
        plan = {"url": url, "sale": 1, "body": "{}", "tokens": ["a", "b"], "per_second": 100, "room_url": None}
        done = subprocess.run(
            [sys.executable, "-m", "loadtest.bench.waiting_crowd"],
            input=json.dumps({**plan, "seconds": 60}),
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
            check=True,
        )
    crowd = json.loads(done.stdout)
    assert (crowd["bought"], crowd["order"]["requests"], crowd["order"]["busy_share"]) == (2, 4, 0.5)
    assert sorted(BusyAtFirst.keys.values()) == [2, 2]


@pytest.mark.slow
def test_a_crowd_buys_without_and_with_a_room(environment: dict[str, str]) -> None:
    done = bench(environment, "waiting-room", "--entrants", "1000", "--seconds", "1", "--json")
    report = report_of(done, done.returncode)
    # A crowd of one second may be too short for a room to make a difference.
    assert done.returncode == (0 if all(waiting_room.goals(report).values()) else 1)
    large, crowd = report["large_room"], report["crowd"]
    assert (large["entrants"], large["bytes_each"] > 30) == (1000, True)
    assert min(large["draws_per_s"], large["arrivals_per_s"], large["looks_per_s"]) > 0
    for burst in crowd.values():
        assert burst["conserved"]
        assert burst["bought"] == burst["buyers"] > 0
        assert burst["order"]["p99_ms"] >= burst["order"]["p50_ms"] > 0
    assert crowd[waiting_room.WITHOUT]["room"] == {"requests": 0}
    for name in (waiting_room.SHARED, waiting_room.SEPARATE):
        assert crowd[name]["room"]["requests"] >= crowd[name]["buyers"]
