"""Locust used by hand: with its web page, headless, and in several processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest

from loadtest.stack import free_port
from tests.loadtest.conftest import CHECKOUT, running, status
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def locust(shop: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--host", shop, *arguments]


def headless(shop: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = locust(shop, "--headless", "--users", "20", "--stock", "30", *arguments)
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=90)


def test_headless_the_audit_is_a_row_of_the_report_and_the_exit_status(shop: str, environment: dict[str, str]) -> None:
    done = headless(shop, environment, "--strategy", "lua")

    assert done.returncode == 0, done.stderr
    assert re.search(r"AUDIT +conserved: 30 of 30 sold, each once", done.stdout + done.stderr)
    assert json.loads(done.stdout.splitlines()[-1])["sold"] == 30


def test_where_no_shop_is_the_run_ends_at_once_and_says_what_to_do(shop: str, environment: dict[str, str]) -> None:
    """Otherwise every buyer asks again until he gives up: minutes for nothing."""
    done = headless(f"http://127.0.0.1:{free_port()}", environment, "--strategy", "lua")

    assert done.returncode == 2, done.stderr
    assert "no shop answers at" in done.stderr
    assert "make demo" in done.stderr
    assert "AUDIT" not in done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("--json-lines",)], ids=["text", "json"])
def test_where_no_shop_is_the_run_ends_also_when_nobody_reads_what_it_says(
    environment: dict[str, str], options: tuple[str, ...]
) -> None:
    """As behind `| head -1`: what cannot be said must not keep it from ending."""
    reading, writing = os.pipe()
    os.close(reading)
    command = locust(f"http://127.0.0.1:{free_port()}", "--headless", "--users", "5", *options)
    # Unbuffered, nothing would be left to say at the end.
    environment = {name: value for name, value in environment.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdin": subprocess.PIPE, "stdout": writing, "stderr": writing}
    with subprocess.Popen(command, cwd=CHECKOUT, env=environment, **pipes) as run:
        os.close(writing)
        try:
            assert run.wait(timeout=30) == 2
        finally:
            run.kill()


def test_headless_a_rung_that_oversells_fails_the_run(shop: str, environment: dict[str, str]) -> None:
    done = headless(shop, environment, "--rung", "compute-and-overwrite")

    assert done.returncode == 1, done.stderr
    assert re.search(r"AUDIT +BROKEN: \d+ oversold", done.stdout + done.stderr)


def test_more_users_than_there_is_to_buy_end_all_the_same(shop: str, environment: dict[str, str]) -> None:
    done = headless(shop, environment, "--stock", "1", "--quantity", "5")

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["attempted"], result["sold"], result["refused"]) == (20, 0, 20)


def test_several_processes_share_the_customers_and_add_up_what_they_were_told(
    shop: str, environment: dict[str, str]
) -> None:
    done = headless(shop, environment, "--processes", "2", "--strategy", "guarded-update")

    assert done.returncode == 0, done.stderr
    result = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert (result["attempted"], result["sold"], result["refused"], result["errors"]) == (60, 30, 30, 0)
    assert (result["conserved"], result["missing"]) == (True, 0)


def test_the_web_page_starts_a_burst_and_shows_the_verdict(shop: str, environment: dict[str, str]) -> None:
    port = free_port()
    page = f"http://127.0.0.1:{port}"
    with running(locust(shop, "--web-port", str(port), "--web-host", "127.0.0.1", "--users", "10"), environment):
        wait_for(lambda: status(page) == 200, timeout=30)
        chosen = {"user_count": 10, "spawn_rate": 10, "host": shop, "stock": 7, "strategy": "optimistic"}
        urllib.request.urlopen(f"{page}/swarm", urllib.parse.urlencode(chosen).encode(), timeout=10).close()

        def audit() -> list[str]:
            with urllib.request.urlopen(f"{page}/stats/requests", timeout=10) as response:
                return [row["name"] for row in json.load(response)["stats"] if row["method"] == "AUDIT"]

        wait_for(audit, timeout=40)
        assert audit() == ["conserved: 7 of 7 sold, each once"]


def test_a_lab_that_is_not_there_stops_the_run_and_says_why(manage, environment: dict[str, str]) -> None:
    assert manage("migrate").returncode == 0
    port = free_port()
    with running([sys.executable, "manage.py", "serve", "--port", str(port)], environment):
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: status(f"{url}/health/") == 200, timeout=30)
        done = manage("rush", "--url", url, "--rung", "compute-and-overwrite")

    assert done.returncode == 2
    assert "Is LAB_ENABLED set where the shop runs?" in done.stderr
