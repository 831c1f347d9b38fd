"""Locust's way in: `locust -f loadtest/locustfile.py`, with its web page, headless, or with `--processes 2`.

The burst is prepared where the run begins, and audited from the tables where it ends: as a row of the report, and as
the exit status.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gevent
from gevent.event import AsyncResult
from gevent.os import tp_read
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.rpc.protocol import Message
from locust.runners import MasterRunner, WorkerRunner

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

import django

django.setup()

from inventory.strategies import registry  # noqa: E402
from loadtest import audit, burst  # noqa: E402
from loadtest.results import Results, percentiles  # noqa: E402
from loadtest.shapes import Burst  # noqa: E402, F401 - Locust finds it by its being here
from loadtest.users import Buyer  # noqa: E402, F401


@events.init_command_line_parser.add_listener
def options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--strategy", default="guarded-update", choices=registry.NAMES, help="how stock is taken")
    parser.add_argument("--rung", default="", help="a flawed rung of the lab instead of a strategy")
    parser.add_argument("--stock", type=int, default=100, help="units there are of each sku")
    parser.add_argument("--skus", type=int, default=1, help="of several, each order is a cart of 1 to 3 units")
    parser.add_argument("--quantity", type=int, default=1, help="units in an order")
    parser.add_argument("--attempts", type=int, default=0, help="orders that are tried; 0 for twice what there is")
    parser.add_argument("--seconds", type=float, default=0, help="after which nobody comes or asks again; 0 for never")
    parser.add_argument(
        "--json-lines",
        action="store_true",
        include_in_web_ui=False,
        help="progress and the result as lines of JSON on standard output; ends when standard input is closed",
    )


@events.init.add_listener
def begin(environment: Environment, **_: Any) -> None:
    environment.tally = Results()
    environment.coming = AsyncResult()
    runner = environment.runner
    if environment.parsed_options and environment.parsed_options.json_lines:
        gevent.spawn(end_with_the_reader)
    # Locust's reports name no environment, so each environment listens for itself.
    if isinstance(runner, WorkerRunner):
        runner.register_message("burst", receive)
        environment.events.report_to_master.add_listener(partial(hand_over, environment))
    elif isinstance(runner, MasterRunner):
        environment.events.worker_report.add_listener(partial(take_over, environment))


def receive(environment: Environment, msg: Message, **_: Any) -> None:
    environment.tally = Results()
    environment.coming = AsyncResult()
    environment.coming.set(burst.Burst(**msg.data))


@events.test_start.add_listener
def prepare(environment: Environment, **_: Any) -> None:
    runner, chosen = environment.runner, environment.parsed_options
    if isinstance(runner, WorkerRunner):
        return
    environment.tally = Results()
    environment.coming = AsyncResult()
    try:
        burst.look_for_the_shop(environment.host)
        coming = burst.prepare(
            host=environment.host,
            strategy=chosen.strategy,
            rung=chosen.rung,
            units=chosen.stock,
            skus=chosen.skus,
            quantity=chosen.quantity,
            limit=chosen.quantity if chosen.skus == 1 else 3,
            customers=burst.make_customers(
                chosen.attempts or max(chosen.num_users or 1, 2 * chosen.stock * chosen.skus // chosen.quantity)
            ),
            seconds=chosen.seconds,
        )
    except Exception as error:
        # Locust would go on without us, with buyers who wait for nothing; also when nobody reads what we say, as behind
        # `| head -1`.
        environment.process_exit_code = 2
        with suppress(BrokenPipeError):
            sys.stderr.write(f"The burst cannot be prepared: {error}\n")
        if chosen.json_lines:
            with suppress(BrokenPipeError):
                say({"error": str(error)})
        runner.quit()
        return
    if isinstance(runner, MasterRunner):
        workers = list(runner.clients)
        for number, worker in enumerate(workers):
            runner.send_message("burst", coming.as_message(number, len(workers)), worker)
    environment.coming.set(coming)
    if chosen.json_lines:
        gevent.spawn(report_progress, environment)


def hand_over(environment: Environment, data: dict[str, Any], **_: Any) -> None:
    data["tally"] = environment.tally.hand_over()


def take_over(environment: Environment, data: dict[str, Any], **_: Any) -> None:
    environment.tally.add(data["tally"])


def report_progress(environment: Environment) -> None:
    told = 0
    while environment.coming.ready():
        tally = environment.tally
        now = {
            "attempted": tally.attempted,
            "answered": len(tally.orders),
            "refused": tally.refused,
            "busy": tally.busy,
        }
        # Of those who were answered since the last line: nobody has to go through all waits again and again.
        say({**now, **percentiles(tally.waits[told:])})
        told = len(tally.waits)
        gevent.sleep(0.2)


def end_with_the_reader() -> None:
    """Whoever reads our lines holds the other end of our standard input. When it is gone, so are we."""
    tp_read(sys.stdin.fileno(), 1)
    os._exit(1)


@atexit.register
def drop_what_nobody_reads() -> None:
    """Python ends with status 120, whatever ours is, when it cannot write what was still to be said."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


@events.test_stop.add_listener
def conclude(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner) or not environment.coming.ready():
        return
    chosen = environment.parsed_options
    ended: burst.Burst = environment.coming.get()
    environment.coming = AsyncResult()
    burst.finish(ended)
    result = audit.verdict(ended, environment.tally, host=environment.host, clients=chosen.num_users or 1)
    broken = not audit.holds(result)
    environment.process_exit_code = 1 if broken else 0
    environment.events.request.fire(
        request_type="AUDIT",
        name=audit.sentence(result),
        response_time=0,
        response_length=0,
        exception=AssertionError(audit.sentence(result)) if broken else None,
        context={},
    )
    if chosen.json_lines:
        say({"result": result})
    else:
        sys.stdout.write(f"\nAudit, from the tables: {audit.sentence(result)}\n{json.dumps(result)}\n")
