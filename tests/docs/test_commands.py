"""Every command in README, CONTRIBUTING and docs is checked for mistakes, and is run or listed with a reason."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence

import pytest
from django.core.management import CommandError, get_commands, load_command_class
from redis import Redis

from tests import test_compose
from tests.docs.pages import BLOCK, PAGES, ROOT, finish
from tests.docs.programs import refused

QUICK = (
    "servers start",
    "servers status",
    "migrate",
    "sample --password last-unit",
    "audit",
    "audit --json",
    "reconcile",
)
"""`manage.py` commands that a test runs as written. A reader could type them in this order."""
LONGER = (
    "replay get-compare-del",
    "replay get-compare-del --on fence",
    "replay get-compare-del --on renewal",
    "replay setnx",
    "explore setnx",
    "explore setnx --clients 3",
    "explore lost-wake-up",
    "ladder --verify setnx fence",
    "ladder --verify lock-inside-the-transaction guarded-update",
)
"""More `manage.py` commands that a test runs as written, in this order. They take longer."""
ONLY_PARSED = {
    "make demo": "serves until it is stopped; tests/loadtest runs it",
    "make rush": "starts a shop and measures; tests/loadtest runs it",
    "make bench": "measures for minutes; tests/loadtest runs it on small sizes",
    "make venv": "installs; the tests run in what it has made",
    "make lint": "is a step of CI, for a minute",
    "make test": "runs these tests",
    "make test-slow": "runs for an hour; the night runs it",
    "make faults": "plays for minutes; CI runs it",
    ".venv/bin/python -m pytest": "runs tests; this test run is one",
    ".venv/bin/pre-commit install": "changes the hooks of this clone",
    ".venv/bin/python manage.py createsuperuser": "asks on the terminal",
    ".venv/bin/python manage.py serve": "runs until it is stopped; tests/loadtest runs it",
    ".venv/bin/python manage.py preflight": "is red for the settings of the tests; tests/shop runs it",
    ".venv/bin/python manage.py servers start etcd zookeeper": "starts six servers; tests/servers runs it",
    ".venv/bin/python manage.py servers stop": "stops what the tests run on; tests/servers runs it",
    ".venv/bin/python manage.py lab status": "is a step of CI, and ends with status 1 while code is being changed",
    ".venv/bin/python manage.py lab refresh": "measures for an hour; tests/lab runs it",
    ".venv/bin/python manage.py ladder": "checks every rung, for minutes; tests/lab runs it",
    "LAB_ENABLED=1": "serves until it is stopped; tests/loadtest runs it",
    "PAY_WITHOUT_PROVIDER=1": "serves until it is stopped; tests/loadtest runs it",
    "PAYMENT_SECRET=shared-with-the-provider": "runs until it is stopped; tests/shop runs it",
    "PAYMENT_PROVIDER=tiny_pay.TinyPay": "needs the file tiny_pay.py; tests/shop makes the class",
    "TRACES=1": "serves until it is stopped; tests/shop runs it",
    ".venv/bin/pip install": "installs",
    ".venv/bin/celery": "runs until it is stopped, or asks one that runs; tests/loadtest runs it",
    ".venv/bin/locust": "needs a shop that serves; tests/loadtest runs it",
    "pg_dump": "reads the shop's database; tests/shop/test_backup.py runs it",
    "pg_restore": "overwrites the shop's database; tests/shop/test_backup.py runs it",
    "docker": "there is no Docker where the tests run",
    "cp": "writes into the folder of the project",
    "apt-get": "installs",
}
"""Commands that these tests check and do not run: the first words of each, and the reason."""
MANAGE = """
import runpy, shlex, sys
for line in sys.argv[1:]:
    print("manage.py", line, flush=True)
    sys.argv = ["manage.py", *shlex.split(line)]
    try:
        runpy.run_path("manage.py", run_name="__main__")
    except SystemExit as ends:
        if ends.code:
            raise
"""
"""Runs several `manage.py` commands in one process, because importing the project takes long."""


def shown() -> set[tuple[str, ...]]:
    """Return the commands in the shell blocks, without the blocks with curl, which test_samples.py runs."""
    blocks = [block for page in PAGES.values() for kind, block in BLOCK.findall(page) if kind in ("sh", "bash")]
    lines = [line for block in blocks if "curl " not in block for line in block.replace("\\\n", " ").splitlines()]
    return {tuple(words) for line in lines if (words := shlex.split(line, comments=True))}


def named() -> set[tuple[str, ...]]:
    """Return the commands of make and `manage.py` inside sentences, without commands that have a placeholder."""
    texts = [re.sub(r"\s+", " ", BLOCK.sub("", page)) for page in PAGES.values()]
    lines = {line for text in texts for line in re.findall("`((?:make|(?:.venv/bin/python )?manage.py) [^`]+)`", text)}
    whole = {re.sub("^manage.py", ".venv/bin/python manage.py", line) for line in lines if not re.search("[<…]", line)}
    return {tuple(shlex.split(line)) for line in whole}


def check(*words: str) -> Iterator[str]:
    """Check a command without running it; raise an error if it is wrong. Yield the lines that programs must parse."""
    while re.match("[A-Z_]+=", words[0]):
        name = words[0].partition("=")[0]
        assert re.search(f"^(# )?{name}=", (ROOT / ".env.example").read_text(), re.MULTILINE), f"no setting: {name}"
        words = words[1:]
    match [words[0].removeprefix(".venv/bin/"), *words[1:]]:
        case ["make", *rest]:
            for name in (word.partition("=")[0] for word in rest if "=" in word):
                assert f"$({name})" in (ROOT / "Makefile").read_text(), f"no variable of the Makefile: {name}"
            for line in finish("make", "--dry-run", *rest).splitlines():
                if line.startswith(".venv/bin/python "):
                    yield from check(*shlex.split(line))
        case ["python", "manage.py", name, *rest]:
            assert name in get_commands(), f"no command: {name}"
            load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(rest)
        case ["python", script, *_] if script.startswith("tools/"):
            assert (ROOT / script).exists(), f"no script: {script}"
        case ["python", "-m", "pytest", *_]:
            pass  # this very test run is one
        case ["python", "-m", *_] | ["celery" | "locust", *_] as line:
            yield shlex.join(line)
        case ["docker", "compose", "exec", service, *rest]:
            yield from check("docker", "compose", "logs", service)
            yield from check(*rest)
        case ["docker", "compose", "run", "--rm", service, *rest]:
            yield from check("docker", "compose", "exec", service, *rest or ["python", "manage.py", "migrate"])
        case ["docker", "compose", "--profile", profile, *rest]:
            services = test_compose.load()["services"].values()
            assert profile in {name for service in services for name in service.get("profiles", [])}
            yield from check("docker", "compose", *rest)
        # Check only the names, because there is no Docker here.
        case ["docker", "compose", "up" | "logs" | "start" | "stop", *rest]:
            known = {*test_compose.load()["services"], "-d", "--wait", "--scale", "-f"}
            assert {word.partition("=")[0] for word in rest} <= known, f"no service or option: {rest}"
        case ["pip", "install", "--require-hashes", "-r", requirements]:
            assert "--hash=" in (ROOT / requirements).read_text()
        case ["pg_dump" | "pg_restore", *_]:
            pass  # tests/shop/test_backup.py runs them
        case ["pre-commit", "install"]:
            assert (ROOT / ".pre-commit-config.yaml").exists()
        case ["apt-get", "install", *packages]:
            ci = (ROOT / ".ci" / "run").read_text()
            assert [package for package in packages if package not in ci.split()] == []
        case ["cp", source, _]:
            assert (ROOT / source).exists()
        case _:
            raise AssertionError(f"no test knows how to check this command: {words}")


ENVIRONMENT = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings"}


WRONG = (
    'make bench ARGS="strategies --client 32 --nothing"',
    ".venv/bin/celery -A shpo worker",
    ".venv/bin/celery -A shop worker --pool thraeds",
    ".venv/bin/celery -A shop inspect pong",
    ".venv/bin/locust -f loadtest/locustfiel.py",
    ".venv/bin/locust -f loadtest/locustfile.py --msater",
)
"""Commands that the parsers must reject, as a negative control."""


def of_other_programs() -> list[str]:
    """Check every command, also those of docker-compose.yml. Return the lines that other programs have to parse."""
    commands = [*sorted(shown() | named()), *map(shlex.split, test_compose.commands())]
    return [line for command in commands for line in check(*command)]


def test_every_command_of_make_and_manage_is_right() -> None:
    assert len(of_other_programs()) > 10
    assert len(named()) > 20


@pytest.mark.slow
def test_every_command_is_understood() -> None:
    """Programs accept every command of the documentation and of docker-compose.yml, and reject the wrong ones."""
    lines = of_other_programs()
    wrong = [line for command in WRONG for line in check(*shlex.split(command))]
    assert refused([*lines, *wrong], ENVIRONMENT) == wrong


@pytest.mark.parametrize(
    "wrong",
    [
        "make demoo",
        "make rush ARG=--once",
        'make rush ARGS="--strategy luaa"',
        "LAB_ENABELD=1 .venv/bin/python manage.py serve",
        ".venv/bin/python manage.py sreve",
        ".venv/bin/python manage.py serve --prot 8000",
        ".venv/bin/python manage.py replay no-such-rung",
        "docker compose exec wbe python manage.py serve",
        "docker compose up --detahc",
        "flask run",
    ],
)
def test_a_wrong_command_is_found(wrong: str) -> None:
    with pytest.raises((AssertionError, CommandError)):
        list(check(*shlex.split(wrong)))


def managed(command: str) -> tuple[str, ...]:
    return (".venv/bin/python", "manage.py", *shlex.split(command))


def reason(command: Sequence[str]) -> str | None:
    """Return the longest entry of `ONLY_PARSED` that begins the command, or None if a test must run the command."""
    starts = [start for start in ONLY_PARSED if tuple(command[: len(words := shlex.split(start))]) == tuple(words)]
    return max(starts, key=len, default=None)


def test_every_command_is_run_or_has_a_reason() -> None:
    run = {managed(command) for command in (*QUICK, *LONGER)}
    reasons = {command: reason(command) for command in shown() - run}
    assert run <= shown(), "no page shows what is run"
    assert [shlex.join(command) for command, found in reasons.items() if found is None] == []
    assert set(reasons.values()) == set(ONLY_PARSED), "a reason that no command needs any more"


def run_all(lines: Sequence[str]) -> None:
    shown = finish(sys.executable, "-c", MANAGE, *lines)
    assert [line for line in lines if f"manage.py {line}\n" not in shown] == []


@pytest.mark.slow
@pytest.mark.parametrize("lines", [QUICK, ("migrate", *LONGER)], ids=["quick", "longer"])
def test_the_commands_run(redis: Redis, lines: Sequence[str]) -> None:
    run_all(lines)


@pytest.mark.slow
def test_a_command_that_fails_is_found(redis: Redis) -> None:
    with pytest.raises(AssertionError, match="no-such-rung"):
        run_all(["replay no-such-rung"])
