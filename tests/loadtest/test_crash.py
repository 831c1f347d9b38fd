"""Killing parts of the shop in the middle of a burst: what was answered 201 is there afterwards, and nothing twice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.factories import DISTINCT
from tests.loadtest.conftest import CHECKOUT

SCENARIO = Path(__file__).with_name("crash_scenario.py")


@pytest.mark.parametrize("strategy", DISTINCT)
def test_killing_web_and_valkey_loses_no_order_and_sells_none_twice(strategy: str, environment: dict[str, str]) -> None:
    folder = tempfile.mkdtemp(prefix="lu-crash-")  # of its own, since the servers in it are killed

    done = subprocess.run(
        [sys.executable, str(SCENARIO), strategy],
        cwd=CHECKOUT,
        env={**environment, "RUN_FOLDER": folder, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=170,
    )
    shutil.rmtree(folder, ignore_errors=True)

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    # The kills came in the middle of the burst: buyers were served before, between and after them.
    assert seen["answered_before_web_was_killed"] >= 30
    assert seen["answered_before_web_was_killed"] < seen["answered_before_valkey_was_killed"] < seen["sold"]
    assert (seen["conserved"], seen["oversold"], seen["missing"]) == (True, 0, 0)
