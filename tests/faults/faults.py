"""The faults by name: what a round can do to the shop in the middle of a burst."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import Random

from django_redis import get_redis_connection

from loadtest.local_shop import is_healthy
from tests.faults.buyers import Crowd
from tests.faults.parts import Parts
from tests.faults.proxy import CuttableProxy, Direction
from tests.waiting import wait_for

CUTS = 4
DOWNTIME = 0.2  # maximum seconds until a killed server is started again

InjectFault = Callable[[Parts, Crowd, Random], int]
"""Causes a fault, and returns how often it happened."""


def kill_web_process(parts: Parts, crowd: Crowd, random: Random) -> int:
    parts.kill_a_web_process()
    return 1


def kill_web(parts: Parts, crowd: Crowd, random: Random) -> int:
    parts.shop.web.kill()
    parts.shop.web.start()
    parts.shop.web.wait_until(lambda: is_healthy(parts.shop.url), timeout=30)
    return 1


def kill_worker(parts: Parts, crowd: Crowd, random: Random) -> int:
    parts.worker.kill()
    parts.worker.start()
    return 1


def kill_valkey(parts: Parts, crowd: Crowd, random: Random) -> int:
    parts.valkey.child.kill()
    time.sleep(random.uniform(0, DOWNTIME))
    parts.valkey.start()
    return 1


def kill_valkey_without_aof(parts: Parts, crowd: Crowd, random: Random) -> int:
    """Stop Valkey's append-only log, wait for another queued order, and kill Valkey. The restart loses this order."""
    get_redis_connection("default").config_set("appendonly", "no")
    before = {purchase.key for purchase in crowd.purchases if purchase.queued}

    def queued_since() -> bool:
        since = (purchase for purchase in crowd.purchases if purchase.key not in before)
        return any(purchase.queued and not purchase.answered for purchase in since)

    wait_for(lambda: crowd.done or queued_since())
    return kill_valkey(parts, crowd, random)


def kill_postgres(parts: Parts, crowd: Crowd, random: Random) -> int:
    parts.kill_postgres()
    time.sleep(random.uniform(0, DOWNTIME))
    parts.postgres.start()
    return 1


def cut(proxy: CuttableProxy, crowd: Crowd, random: Random, within: Mapping[Direction, int]) -> int:
    """Cut one connection after the other in the middle of a call. `within`: most bytes before a cut, by direction."""
    before = proxy.cuts
    for number in range(before + 1, before + CUTS + 1):
        direction = random.choice(tuple(within))
        proxy.cut_after(random.randrange(within[direction]), direction)
        wait_for(lambda wanted=number: proxy.cuts >= wanted or crowd.done)  # type: ignore[misc]
    proxy.stop_cutting()
    return proxy.cuts - before


FAULTS: Mapping[str, InjectFault] = {
    "kill-web-process": kill_web_process,
    "kill-web": kill_web,
    "kill-worker": kill_worker,
    "kill-valkey": kill_valkey,
    "kill-postgres": kill_postgres,
    "cut-redis": lambda parts, *rest: cut(parts.to_redis, *rest, {"request": 300, "response": 20}),
    "cut-postgres": lambda parts, *rest: cut(parts.to_postgres, *rest, {"request": 3000, "response": 800}),
}

ASKS_REDIS = {"lua", "lua-queue", "redis-lock", "segmented-lock", "segmented-redis"}
"""Strategies whose every order sends commands to the shop's Redis."""


def faults_of(strategy: str) -> list[str]:
    """Return the faults that can affect a strategy's orders. Without Redis there is no Redis connection to cut."""
    return sorted(FAULTS if strategy in ASKS_REDIS else FAULTS.keys() - {"cut-redis"})


CONTROLS: Mapping[str, InjectFault] = {
    "kill-valkey-without-aof": kill_valkey_without_aof,
    "nothing": lambda *_: 0,
}
"""Faults for negative controls: one that no shop survives, and none at all."""
