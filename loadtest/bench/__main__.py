"""Command line of the benchmarks: `python -m loadtest.bench SUBJECT`; `--help` lists the subjects."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

import django

django.setup()

import argparse  # noqa: E402
import sys  # noqa: E402

from loadtest.bench import (  # noqa: E402
    contention,
    locks,
    metrics,
    operator_pages,
    retry_delay,
    segments,
    storefront,
    strategies,
    waiting_room,
)
from loadtest.bench.cpu import HostSteal  # noqa: E402
from servers.errors import ServerError  # noqa: E402

MOST_STEAL = 0.05
"""If the host gives more than this share of the CPU time to other machines, the figures of a run are doubtful."""
WARNING = (
    "During the run, the host gave {share:.0%} of the processors' time to other machines, so do not compare these "
    "figures with another run. Measure again when the host is idle (`st` in `vmstat`)."
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench",
        description="Measure strategies or locks side by side with widely used alternatives, or what segments, "
        "optimistic locking and shorter pauses gain and cost. Everything runs on this machine, so compare ratios "
        "within one run, not absolute figures of two runs.",
    )
    subjects = parser.add_subparsers(required=True, metavar="SUBJECT")
    strategies.add_arguments(subjects.add_parser("strategies", help="orders per second of each strategy, over HTTP"))
    locks.add_arguments(subjects.add_parser("locks", help="latency, hand-over, fairness and waiting cost of each lock"))
    segments.add_arguments(
        subjects.add_parser("segments", help="orders per second by number of segments and work under the lock")
    )
    contention.add_arguments(
        subjects.add_parser(
            "contention", help="failed updates of an optimistic lock, and the wait of a pessimistic one"
        )
    )
    retry_delay.add_arguments(
        subjects.add_parser("retry-delay", help="hand-over and waiting cost of a Redlock by its retry delay")
    )
    waiting_room.add_arguments(
        subjects.add_parser("waiting-room", help="memory of a waiting room, and a crowd without and with one")
    )
    storefront.add_arguments(
        subjects.add_parser(
            "storefront",
            help="what people who watch a sale cost the shop, and what its page weighs",
            description=storefront.DESCRIPTION,
        )
    )
    metrics.add_arguments(
        subjects.add_parser("metrics", help="what metrics and traces cost an order", description=metrics.DESCRIPTION)
    )
    operator_pages.add_arguments(
        subjects.add_parser(
            "operator", help="what the operator's pages cost with many orders", description=operator_pages.DESCRIPTION
        )
    )
    options = parser.parse_args()
    steal = HostSteal()
    try:
        status = int(options.run(options))
        if steal.share() > MOST_STEAL:
            print(WARNING.format(share=steal.share()), file=sys.stderr)  # noqa: T201
        return status
    except ServerError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130  # The exit status that shells use for SIGINT.


raise SystemExit(main())
