"""Every command in README and docs is run, or read by the real parser of the program that it names."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence

import pytest
import yaml
from django.core.management import CommandError, call_command, get_commands, load_command_class
from redis import Redis

from tests.docs.pages import BLOCK, PAGES, ROOT, finish

RUN = {"audit", "reconcile", "sample"}
ONLY_PARSED = {
    "createsuperuser": "is Django's own and asks on the terminal",
    "demo": "runs for a minute; tests/loadtest runs it",
    "explore": "searches; tests/lab runs it",
    "lab": "measures for hours; tests/lab runs it",
    "ladder": "checks many rungs; tests/lab runs it",
    "migrate": "is Django's own; every test run applies the migrations",
    "replay": "needs databases of the lab; tests/lab runs it",
    "rush": "starts a shop; tests/loadtest runs it",
    "serve": "runs until it is stopped; tests/loadtest runs it",
    "servers": "stops what the tests run on; tests/servers runs it",
}
"""Commands of `manage.py` that are only parsed here, and why they are not run."""
PARSE = """
import argparse, runpy, sys
parse = argparse.ArgumentParser.parse_args
def only_parse(*arguments, **options):
    parse(*arguments, **options)
    raise SystemExit(0)
argparse.ArgumentParser.parse_args = only_parse
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
CELERY = """
import sys
from celery.bin.celery import celery
with celery.make_context("celery", sys.argv[1:]) as context:
    context.invoked_subcommand, *rest = [*context._protected_args, *context.args]
    context.invoke(celery.callback, **context.params)
    celery.get_command(context, context.invoked_subcommand).make_context("", rest, parent=context)
"""


def commands() -> set[tuple[str, ...]]:
    """The commands in the shell blocks. Blocks with curl are left out: they are run as samples."""
    blocks = [block for page in PAGES.values() for kind, block in BLOCK.findall(page) if kind in ("sh", "bash")]
    lines = [line for block in blocks if "curl " not in block for line in block.replace("\\\n", " ").splitlines()]
    return {tuple(words) for line in lines if (words := shlex.split(line, comments=True))}


def check(*words: str) -> None:
    """Let the program that a command names parse the rest, and fail if it does not understand it."""
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
                    check(*shlex.split(line))
        case ["python", "manage.py", name, *rest]:
            assert name in get_commands(), f"no command: {name}"
            assert name in RUN or name in ONLY_PARSED, f"say why {name} is not run here"
            load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(rest)
        case ["python", "-m", "pytest", *_]:
            pass  # this very test run is one
        case ["python", "-m", *rest]:
            finish(sys.executable, "-c", PARSE, *rest)
        case ["celery", *rest]:
            finish(sys.executable, "-c", CELERY, *rest)
        case ["locust", *rest]:
            finish(sys.executable, "-m", "locust", *rest, "--list")
        case ["docker", "compose", "exec", service, *rest]:
            check("docker", "compose", "logs", service)
            check(*rest)
        case ["docker", "compose", "up" | "logs", *rest]:  # there is no Docker where the tests run
            services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
            options = {"-d", "--wait", "--scale", "-f"}
            assert {word.partition("=")[0] for word in rest} <= {*services, *options}, f"no service or option: {rest}"
        case ["cp", source, _]:
            assert (ROOT / source).exists()
        case _:
            raise AssertionError(f"no test knows how to check this command: {words}")


@pytest.mark.parametrize("command", sorted(commands()), ids=shlex.join)
def test_a_command_is_understood(command: Sequence[str]) -> None:
    check(*command)


@pytest.mark.parametrize(
    "wrong",
    [
        "make demoo",
        "make rush ARG=--once",
        'make rush ARGS="--strategy luaa"',
        'make bench ARGS="strategies --client 32 --nothing"',
        "LAB_ENABELD=1 .venv/bin/python manage.py serve",
        ".venv/bin/python manage.py sreve",
        ".venv/bin/python manage.py serve --prot 8000",
        ".venv/bin/python manage.py replay no-such-rung",
        ".venv/bin/celery -A shop worker --pool thraeds",
        "docker compose exec wbe python manage.py serve",
        "docker compose up --detahc",
        "flask run",
    ],
)
def test_a_command_that_is_not_understood_is_found(wrong: str) -> None:
    with pytest.raises((AssertionError, CommandError)):
        check(*shlex.split(wrong))


@pytest.mark.django_db(transaction=True)
def test_the_quick_commands_run(redis: Redis) -> None:
    call_command("sample")
    managed = sorted(words[2:] for words in commands() if words[1:2] == ("manage.py",) and words[2] in RUN)
    assert {name for name, *_ in managed} == RUN
    for name, *rest in managed:
        call_command(name, *rest)
