"""The benchmark of the waiting room: it measures a room of any size, and a crowd loses no order."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadtest.bench import waiting_room
from tests.loadtest.conftest import CHECKOUT


def test_a_large_room_is_measured() -> None:
    small, large = waiting_room.measure_large_room(1000), waiting_room.measure_large_room(4000)
    assert (small["entrants"], large["entrants"]) == (1000, 4000)
    assert small["memory_mb"] < large["memory_mb"]
    assert 30 < large["bytes_each"] < 300
    assert min(large["draws_per_s"], large["arrivals_per_s"], large["looks_per_s"]) > 0


@pytest.mark.slow
def test_a_crowd_buys_without_and_with_a_room(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.bench", "waiting-room", "--entrants", "1000", "--seconds", "1", "--json"],
        cwd=CHECKOUT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
        check=True,
    )
    crowd = json.loads(done.stdout.splitlines()[-1])["crowd"]
    for burst in crowd.values():
        assert burst["conserved"]
        assert burst["bought"] == burst["buyers"] > 0
        assert burst["order"]["p99_ms"] >= burst["order"]["p50_ms"] > 0
    assert crowd["without"]["room"] == {"requests": 0}
    assert crowd["with"]["room"]["requests"] >= crowd["with"]["buyers"]
