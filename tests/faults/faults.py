"""What happens to the shop in the middle of a burst, by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import Random

from django_redis import get_redis_connection

from loadtest.stack import answers
from tests.faults.buyers import Burst
from tests.faults.parts import Parts
from tests.faults.proxy import Line, Way
from tests.waiting import wait_for

CUTS = 4
GONE = 0.2  # seconds for which a server is away, at most

Fault = Callable[[Parts, Burst, Random], int]
"""Does it at a random moment, and returns how often."""


def kill_web_process(parts: Parts, burst: Burst, random: Random) -> int:
    parts.kill_a_web_process()
    return 1


def kill_web(parts: Parts, burst: Burst, random: Random) -> int:
    parts.stack.web.kill()
    parts.stack.web.start()
    parts.stack.web.wait_until(lambda: answers(parts.stack.url), timeout=30)
    return 1


def kill_worker(parts: Parts, burst: Burst, random: Random) -> int:
    parts.worker.kill()
    parts.worker.start()
    return 1


def kill_valkey(parts: Parts, burst: Burst, random: Random) -> int:
    parts.valkey.child.kill()
    time.sleep(random.uniform(0, GONE))
    parts.valkey.start()
    return 1


def kill_valkey_without_its_log(parts: Parts, burst: Burst, random: Random) -> int:
    """It comes back as it was when it stopped logging, and somebody has been told since that he is queued."""
    get_redis_connection("default").config_set("appendonly", "no")
    before = {wish.key for wish in burst.wishes if wish.queued}
    wait_for(
        lambda: burst.over or any(wish.queued and not wish.answered for wish in burst.wishes if wish.key not in before)
    )
    return kill_valkey(parts, burst, random)


def kill_postgres(parts: Parts, burst: Burst, random: Random) -> int:
    parts.kill_postgres()
    time.sleep(random.uniform(0, GONE))
    parts.postgres.start()
    return 1


def cut_redis(parts: Parts, burst: Burst, random: Random) -> int:
    return cut(parts.to_redis, burst, random, {"there": 300, "back": 20})


def cut_postgres(parts: Parts, burst: Burst, random: Random) -> int:
    return cut(parts.to_postgres, burst, random, {"there": 3000, "back": 800})


def cut(line: Line, burst: Burst, random: Random, within: Mapping[Way, int]) -> int:
    """Cut one connection after the other, each in the middle of a call, until the burst is over.

    Args:
        within: so many bytes, a few orders' worth of those who need the line least.
    """
    before = line.cuts
    for number in range(before + 1, before + CUTS + 1):
        way = random.choice(tuple(within))
        line.cut_after(random.randrange(within[way]), way)
        wait_for(lambda wanted=number: line.cuts >= wanted or burst.over)  # type: ignore[misc]
    line.leave_alone()
    return line.cuts - before


def nothing(parts: Parts, burst: Burst, random: Random) -> int:
    """What only a fault should break must hold without one."""
    return 0


FAULTS: Mapping[str, Fault] = {
    "kill-web-process": kill_web_process,
    "kill-web": kill_web,
    "kill-worker": kill_worker,
    "kill-valkey": kill_valkey,
    "kill-postgres": kill_postgres,
    "cut-redis": cut_redis,
    "cut-postgres": cut_postgres,
}

CONTROLS: Mapping[str, Fault] = {
    "kill-valkey-without-its-log": kill_valkey_without_its_log,
    "nothing": nothing,
}
"""What a shop need not survive, and what it must."""
