"""Locust event listeners: options, preparation, progress and verdict of a burst.

They add two attributes to Locust's environment: `burst_results` (a `Results`) and `prepared_burst` (an `AsyncResult`
that is ready while a burst runs).
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import gevent
from gevent.event import AsyncResult
from gevent.os import tp_read
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.rpc.protocol import Message
from locust.runners import MasterRunner, WorkerRunner

from inventory.strategies import registry
from loadtest import outcome, preparation
from loadtest.burst import Burst
from loadtest.results import Results, percentiles
from loadtest.verdict import compute_verdict, holds, summarize


def add_options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--strategy", default=registry.DEFAULT, choices=registry.NAMES, help="how the shop takes stock")
    parser.add_argument("--rung", default="", help="a flawed rung of the lab to sell with, in place of a strategy")
    parser.add_argument("--stock", type=int, default=100, help="units of each sku")
    parser.add_argument("--skus", type=int, default=1, help="number of skus; with several, an order has 1 to 3 units")
    parser.add_argument("--quantity", type=int, default=1, help="units in each order of a single sku")
    parser.add_argument(
        "--attempts", type=int, default=0, help="number of orders; 0 for twice what the stock can serve"
    )
    parser.add_argument(
        "--seconds", type=float, default=0, help="stop starting and retrying orders after this time; 0 for no limit"
    )
    parser.add_argument(
        "--json-lines",
        action="store_true",
        include_in_web_ui=False,
        help="write progress and verdict as lines of JSON; exit when standard input is closed",
    )


def on_init(environment: Environment, **_: Any) -> None:
    _reset(environment)
    if environment.parsed_options and environment.parsed_options.json_lines:
        gevent.spawn(_exit_when_input_closes)
    # Locust's report events do not name the environment, so bind the environment to the listeners.
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        runner.register_message("burst", _receive_burst)
        environment.events.report_to_master.add_listener(partial(_send_results, environment))
    elif isinstance(runner, MasterRunner):
        environment.events.worker_report.add_listener(partial(_add_results, environment))


def on_test_start(environment: Environment, **_: Any) -> None:
    """Prepare the burst and give it to the buyers; on failure end Locust with status 2."""
    runner, options = environment.runner, environment.parsed_options
    if isinstance(runner, WorkerRunner):
        return
    _reset(environment)
    try:
        burst = _prepare(environment)
    except Exception as error:
        # End Locust. Otherwise its buyers would wait for a burst forever.
        _fail(environment, f"The burst cannot be prepared: {error}", error)
        runner.quit()
        return
    if isinstance(runner, MasterRunner):
        workers = list(runner.clients)
        for number, worker in enumerate(workers):
            runner.send_message("burst", burst.as_message(number, len(workers)), worker)
    environment.prepared_burst.set(burst)
    if options.json_lines:
        gevent.spawn(_report_progress, environment)


def on_test_stop(environment: Environment, **_: Any) -> None:
    """Compute the verdict from the tables, and report it.

    Exit status: 0 if the verdict holds, 1 if it does not, 2 without a verdict.
    """
    if isinstance(environment.runner, WorkerRunner) or not environment.prepared_burst.ready():
        return
    options = environment.parsed_options
    burst: Burst = environment.prepared_burst.get()
    environment.prepared_burst = AsyncResult()
    try:
        outcome.close_sale(burst)
        verdict = compute_verdict(
            burst, environment.burst_results, host=environment.host, clients=options.num_users or 1
        )
    except Exception as error:
        _fail(environment, f"There is no verdict: {error}", error)
        return
    broken = not holds(verdict)
    environment.process_exit_code = 1 if broken else 0
    environment.events.request.fire(
        request_type="AUDIT",
        name=summarize(verdict),
        response_time=0,
        response_length=0,
        exception=AssertionError(summarize(verdict)) if broken else None,
        context={},
    )
    if options.json_lines:
        _write_line({"result": verdict})
    else:
        sys.stdout.write(f"\nVerdict, computed from the tables: {summarize(verdict)}\n{json.dumps(verdict)}\n")


def _fail(environment: Environment, message: str, error: Exception) -> None:
    """Say why there is no verdict, and let Locust end with status 2."""
    environment.process_exit_code = 2
    # Suppress BrokenPipeError: Locust must end even if standard output is closed, as with `| head -1`.
    with suppress(BrokenPipeError):
        sys.stderr.write(f"{message}\n")
    if environment.parsed_options.json_lines:
        with suppress(BrokenPipeError):
            _write_line({"error": str(error)})


def _reset(environment: Environment) -> None:
    environment.burst_results = Results()
    environment.prepared_burst = AsyncResult()


def _prepare(environment: Environment) -> Burst:
    options = environment.parsed_options
    preparation.require_shop(environment.host)
    orders = options.attempts or max(options.num_users or 1, 2 * options.stock * options.skus // options.quantity)
    return preparation.prepare(
        host=environment.host,
        strategy=options.strategy,
        rung=options.rung,
        units=options.stock,
        skus=options.skus,
        quantity=options.quantity,
        limit=options.quantity if options.skus == 1 else 3,
        customers=preparation.create_customers(orders),
        seconds=options.seconds,
    )


def _receive_burst(environment: Environment, msg: Message, **_: Any) -> None:
    _reset(environment)
    environment.prepared_burst.set(Burst(**msg.data))


def _send_results(environment: Environment, data: dict[str, Any], **_: Any) -> None:
    data["burst_results"] = environment.burst_results.take()


def _add_results(environment: Environment, data: dict[str, Any], **_: Any) -> None:
    environment.burst_results.add(data["burst_results"])


def _report_progress(environment: Environment) -> None:
    reported = 0
    while environment.prepared_burst.ready():
        results = environment.burst_results
        counts = {
            "attempted": results.attempted,
            "answered": len(results.orders),
            "refused": results.refused,
            "busy": results.busy,
        }
        # Compute percentiles only of the answers since the last line: sorting all of them would slow down the buyers.
        _write_line({**counts, **percentiles(results.waits[reported:])})
        reported = len(results.waits)
        gevent.sleep(0.2)


def _exit_when_input_closes() -> None:
    """Exit when standard input closes: the program that started this process and reads its lines has then ended."""
    tp_read(sys.stdin.fileno(), 1)
    os._exit(1)


def _write_line(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


@atexit.register
def _discard_unread_output() -> None:
    """Keep the exit status when standard output is closed. If the last flush fails, Python exits with status 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
