"""Hash the behaviour of the code that each stored result depends on. A changed hash makes the result out of date."""

from __future__ import annotations

from functools import cache
from typing import Literal

from lab.claims.behaviour import hash_of_behaviour, hash_of_files
from lab.claims.definitions import ROOT
from lab.ladder.catalogue import LADDER

Part = Literal["strategies", "locks", "segments", "contention", "retry-delay"]
"""A part of the comparison, the set of benchmarks that the lab's pages show."""

BUILDERS = "lab.workloads.registry:BUILDERS"
"""The table of experiments. The row of a lock or way of selling leads to all code that its experiment runs."""
CHECKING = ("lab.claims.finding:find", "lab.claims.finding:breaks")
STRESSING = ("lab.claims.stress:stress_entry",)

CLIENTS = ("bursts", "client_processes", "clients")
STRATEGIES = (
    *("bursts", "buying", "clients", "cpu", "growth", "peer_strategy", "recovery", "references", "saving", "settings"),
    *("strategies", "strategy_measurements", "strategy_report", "urls", "views", "wsgi"),
)
CONTENDERS = (
    *("addresses", "contenders", "etcd3gw_recipe", "kazoo_recipe", "redisson_recipe"),
    *("lock_measurements", "lock_sessions"),
)
"""Files of `loadtest/bench`. `STRATEGIES` is for the table of strategies, `CLIENTS` for the curves of strategies, and
`CONTENDERS` for the table of locks and the curve of the retry delay."""


ORDERS = ("shop/orders", "shop/redis_connections.py", "shop/runtime", "shop/sales")
"""Files of the shop that all curves of strategies measure."""


def _bench(*names: str) -> tuple[str, ...]:
    return tuple(f"loadtest/bench/{name}.py" for name in names)


MEASURED: dict[Part, tuple[str, ...]] = {
    "strategies": (
        *("locking", "inventory", *_bench(*STRATEGIES)),
        *("shop/accounts", "shop/api", "shop/orders", "shop/metrics", "shop/runtime", "shop/sales", "shop/waiting"),
        *("shop/admin/checked.py", "shop/clock.py", "shop/limits.py", "shop/models.py", "shop/pages/error_pages.py"),
        *("shop/redis_connections.py", "shop/traces/tracing.py"),
    ),
    "locks": ("locking", *_bench("locks", *CONTENDERS)),
    "segments": ("locking", "inventory", *ORDERS, *_bench("segments", *CLIENTS)),
    "contention": ("inventory", *ORDERS, *_bench("contention", *CLIENTS)),
    "retry-delay": ("locking", *_bench("retry_delay", *CONTENDERS)),
}
"""For each part of the comparison: files and folders with the measured code, and with the code of the benchmark."""


@cache
def behaviour_of_verdict(slug: str) -> str:
    """Hash the code that runs when a rung's claim is checked."""
    return hash_of_behaviour([BUILDERS, LADDER[slug].code, *CHECKING], slug=slug, slugs=LADDER)


@cache
def behaviour_of_stress(slug: str) -> str:
    """Hash the code that runs in the stress run of a rung."""
    return hash_of_behaviour([BUILDERS, LADDER[slug].code, *STRESSING], slug=slug, slugs=LADDER)


@cache
def behaviour_of_comparison(part: Part) -> str:
    """Hash the code that a part of the comparison measures, and the code of its benchmark."""
    return hash_of_files(*(ROOT / folder for folder in MEASURED[part]))
