"""Limit the order requests of a customer."""

from __future__ import annotations

import threading
import time
from collections import Counter

import redis
from django.conf import settings
from django_redis import get_redis_connection
from redis import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from inventory.outages import Breaker, outages
from shop import limits

breaker = Breaker(limits.REDIS)
"""Whether Redis answered the last count. It may hold back a script while it accepts connections (CLIENT PAUSE)."""
LIMITING = "Limiting order requests"
"""The work that fails while Redis is away: each process limits the requests that it gets then."""

# A script, because a crash between INCRBY and EXPIRE would leave a key that never expires. The counts are not written
# to the append-only file, where each would wait for the disk; losing the counts of a second does no harm.
COUNT = """
    redis.set_repl(redis.REPL_NONE)
    local tries = redis.call('INCRBY', KEYS[1], ARGV[1])
    if tries == tonumber(ARGV[1]) then
        redis.call('EXPIRE', KEYS[1], 2)
    end
    return tries
"""


class Seen:
    """The customers whose requests this process has counted in the present second."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._second = 0
        self._tries: Counter[str] = Counter()

    def count(self, customer: str, second: int) -> int:
        """Count a request, and return how many the customer has sent to this process in this second."""
        with self._mutex:
            if second != self._second:
                self._second, self._tries = second, Counter()
            self._tries[customer] += 1
            return self._tries[customer]


seen = Seen()
looks = Seen()
LOOKS = 10
"""Requests about a waiting room that a customer may send to a process in a second. Pages send one in two seconds."""


class OrderRate(BaseThrottle):
    """Allow a customer `ORDER_RATE` requests in a second, counted in Redis for all processes.

    The first request of a customer in a second is counted in this process only: in a sale nearly all customers send no
    more, and asking Redis for each would take a fifth of the CPU time of a refusal. The second request counts both. A
    customer who reaches every web process can thus send one more request to each.

    While Redis does not answer, each process counts by itself. If it hangs, one request at a time asks it.
    """

    def allow_request(self, request: Request, view: APIView) -> bool:
        second = int(time.time())
        customer = str(request.user.pk)
        here = seen.count(customer, second)
        if here == 1 < settings.ORDER_RATE:
            return True
        if breaker.is_another_callers():
            return here <= settings.ORDER_RATE
        uncounted = 2 if here == 2 and settings.ORDER_RATE > 1 else 1
        try:
            tries = get_redis_connection("default").eval(COUNT, 1, f"rate:{customer}:{second}", uncounted)
        except RedisError as error:
            if isinstance(error, redis.TimeoutError):
                breaker.begin()
            else:
                breaker.end_turn()
            outages.failed(LIMITING, error)
            return here <= settings.ORDER_RATE
        breaker.end()
        outages.worked(LIMITING)
        return bool(tries <= settings.ORDER_RATE)

    def wait(self) -> float:
        return 1 - time.time() % 1

    @property
    def rule(self) -> str:
        """The limit in words."""
        return f"A customer may send {settings.ORDER_RATE} order requests in a second."


class LookRate(BaseThrottle):
    """Allow a customer `LOOKS` requests about waiting rooms in a second, in each process."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        return looks.count(str(request.user.pk), int(time.time())) <= LOOKS

    def wait(self) -> float:
        return 1 - time.time() % 1

    @property
    def rule(self) -> str:
        """The limit in words."""
        return f"A customer may ask for their places in waiting rooms {LOOKS} times in a second."
