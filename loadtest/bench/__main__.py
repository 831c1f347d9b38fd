"""`python -m loadtest.bench WHAT`: strategies or locks side by side with what people use today, as ratios."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

import django

django.setup()

import argparse  # noqa: E402
import sys  # noqa: E402

from loadtest.bench import locks, strategies  # noqa: E402
from servers.errors import ServerError  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    what = parser.add_subparsers(required=True, metavar="WHAT")
    strategies.add_arguments(what.add_parser("strategies", help="orders per second of each strategy through REST"))
    locks.add_arguments(what.add_parser("locks", help="each lock, uncontended, handed over, fought for and waited for"))
    options = parser.parse_args()
    try:
        return int(options.run(options))
    except ServerError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130  # as shells count it


raise SystemExit(main())
