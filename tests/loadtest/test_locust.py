"""Locust runs headless, with its web page, and in several processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest

from loadtest.local_shop import free_port
from tests.loadtest.conftest import CHECKOUT, Manage, running, status
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def locust(shop: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--host", shop, *arguments]


def headless(shop: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = locust(shop, "--headless", "--users", "20", "--stock", "30", *arguments)
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=90)


SHARED = {"attempted": 60, "sold": 30, "refused": 30, "errors": 0, "conserved": True, "missing": 0}


@pytest.mark.parametrize(
    ("options", "code", "row", "expected"),
    [
        (["--strategy", "lua"], 0, "conserved: 30 of 30 sold, each once", {"sold": 30}),
        (["--rung", "compute-and-overwrite"], 1, r"BROKEN: \d+ oversold", {}),
        (["--stock", "1", "--quantity", "5"], 0, "conserved", {"attempted": 20, "sold": 0, "refused": 20}),
        (["--processes", "2", "--strategy", "guarded-update"], 0, "conserved", SHARED),
    ],
    ids=["sound", "flawed", "nothing to sell", "several processes share the customers"],
)
def test_the_verdict_is_a_row_and_the_exit_status(
    shop: str, environment: dict[str, str], options: list[str], code: int, row: str, expected: dict[str, int]
) -> None:
    done = headless(shop, environment, *options)
    assert done.returncode == code, done.stderr
    assert re.search(rf"AUDIT +{row}", done.stdout + done.stderr)
    result = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert expected.items() <= result.items()


@pytest.mark.parametrize("options", [(), ("--json-lines",)], ids=["text", "json"])
@pytest.mark.parametrize("closed", [False, True], ids=["", "output closed"])
def test_without_a_shop_it_ends_at_once_and_says_what_to_do(
    environment: dict[str, str], options: tuple[str, ...], closed: bool
) -> None:
    """Without a shop, Locust ends at once with advice, even if its output is closed, as by `| head -1`."""
    command = locust(f"http://127.0.0.1:{free_port()}", "--headless", "--users", "5", *options)
    # Buffer the output, so that the last flush fails.
    environment = {name: value for name, value in environment.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    if closed:
        os.close(reading)
    pipes = {"stdin": subprocess.PIPE, "stdout": writing, "stderr": writing}
    with subprocess.Popen(command, cwd=CHECKOUT, env=environment, **pipes) as run:
        os.close(writing)
        try:
            assert run.wait(timeout=30) == 2
        finally:
            run.kill()
    if not closed:
        with os.fdopen(reading) as file:
            output = file.read()
        assert "no shop answers at" in output
        assert "make demo" in output
        assert "AUDIT" not in output


def test_the_web_page_starts_a_burst_and_shows_the_verdict(shop: str, environment: dict[str, str]) -> None:
    port = free_port()
    page = f"http://127.0.0.1:{port}"
    with running(locust(shop, "--web-port", str(port), "--web-host", "127.0.0.1", "--users", "10"), environment):
        wait_for(lambda: status(page) == 200, timeout=30)
        options = {"user_count": 10, "spawn_rate": 10, "host": shop, "stock": 7, "strategy": "optimistic"}
        urllib.request.urlopen(f"{page}/swarm", urllib.parse.urlencode(options).encode(), timeout=10).close()

        def verdicts() -> list[str]:
            with urllib.request.urlopen(f"{page}/stats/requests", timeout=10) as response:
                return [row["name"] for row in json.load(response)["stats"] if row["method"] == "AUDIT"]

        assert wait_for(verdicts, timeout=40) == ["conserved: 7 of 7 sold, each once"]


def test_a_missing_lab_is_reported(manage: Manage, environment: dict[str, str]) -> None:
    assert manage("migrate").returncode == 0
    port = free_port()
    with running([sys.executable, "manage.py", "serve", "--port", str(port)], environment):
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: status(f"{url}/health/") == 200, timeout=30)
        done = manage("rush", "--url", url, "--rung", "compute-and-overwrite")
    assert done.returncode == 2
    assert "Is LAB_ENABLED set where the shop runs?" in done.stderr
