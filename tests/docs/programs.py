"""Let the project's programs parse command lines without running them.

Each program parses all of its lines in one process, because importing it takes longer than parsing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tests.docs.pages import ROOT

PROGRAMS = {
    "python -m": """
import argparse, runpy
parse_args = argparse.ArgumentParser.parse_args

def only_parse(*arguments, **options):
    parse_args(*arguments, **options)
    raise SystemExit(0)

argparse.ArgumentParser.parse_args = only_parse

def parse(module, *rest):
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
""",
    "celery": """
from celery.bin.celery import celery
from celery.worker.control import Panel

def parse(*arguments):
    with celery.make_context("celery", list(arguments)) as context:
        rest = [*context._protected_args, *context.args]
        context.invoked_subcommand = rest[0]
        context.invoke(celery.callback, **context.params)
        name, command, rest = celery.resolve_command(context, rest)
        parsed = command.make_context(name, rest, parent=context).params
    if name == "inspect":
        assert Panel.meta[parsed["command"]].type == "inspect"
""",
    "locust": """
from locust import events
from locust.main import main
listeners = list(events.init_command_line_parser._handlers)

def parse(*arguments):
    events.init_command_line_parser._handlers[:] = listeners  # Each read of the locustfile adds its listeners.
    sys.argv = ["locust", *arguments, "--list"]
    main()
""",
}
"""For each program, code that defines how its arguments are parsed."""
EACH = """
understood = []
for line in lines:
    try:
        parse(*shlex.split(line))
        understood.append(True)
    except SystemExit as ends:
        understood.append(not ends.code)
    except Exception:  # Whatever a program raises, it has not understood the line. The traceback says why.
        traceback.print_exc()
        understood.append(False)
print(json.dumps(understood))
"""


def refused(lines: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command lines that their programs reject. Each line begins with the name of its program."""
    by_program: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        by_program[next(program for program in PROGRAMS if line.startswith(f"{program} "))].append(line)
    found: set[str] = set()
    for program, its_lines in by_program.items():
        code = f"import json, shlex, sys, traceback\nlines = sys.argv[1:]\n{PROGRAMS[program]}\n{EACH}"
        command = [sys.executable, "-c", code, *(line.removeprefix(program) for line in its_lines)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        understood = json.loads(done.stdout.splitlines()[-1])
        refusals = {line for line, ok in zip(its_lines, understood, strict=True) if not ok}
        if refusals:
            sys.stderr.write(done.stderr)  # The report of a failed test shows this.
        found |= refusals
    return [line for line in lines if line in found]
