"""Rate limits per customer, for order requests and for requests about waiting rooms."""

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
"""The circuit breaker that is open while calls of `COUNT` time out, for example during CLIENT PAUSE."""
LIMITING = "Limiting order requests"
"""The work that the log reports as failing while Redis does not answer. Each process then counts for itself."""

# Use a script, because a crash between INCRBY and EXPIRE would leave a key that never expires. The script does not
# write to the append-only file, so it need not wait for the disk. Losing the counts of a second does no harm.
COUNT = """
    redis.set_repl(redis.REPL_NONE)
    local tries = redis.call('INCRBY', KEYS[1], ARGV[1])
    if tries == tonumber(ARGV[1]) then
        redis.call('EXPIRE', KEYS[1], 2)
    end
    return tries
"""


class Seen:
    """Counts the requests of each customer to this process in the current second."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._second = 0
        self._tries: Counter[str] = Counter()

    def count(self, customer: str, second: int) -> int:
        """Count a request, and return how many requests the customer has sent to this process in this second."""
        with self._mutex:
            if second != self._second:
                self._second, self._tries = second, Counter()
            self._tries[customer] += 1
            return self._tries[customer]


seen = Seen()
looks = Seen()
LOOKS = 10
"""Maximum number of requests about waiting rooms that a customer may send to a process in a second.

A page sends at most one request in two seconds.
"""


class OrderRate(BaseThrottle):
    """Allow a customer `ORDER_RATE` order requests in a second, counted in Redis for all processes.

    The first request of a customer in a second is counted only in this process, unless `ORDER_RATE` is 1. Nearly all
    customers send only this request, and a command to Redis would take a fifth of the CPU time of a refusal. The second
    request adds both requests to the count in Redis. So a customer can send one request too many to each web process.

    While Redis does not answer, each process counts for itself. While Redis hangs, only one request at a time waits for
    Redis.
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
        """A sentence for the client about this limit."""
        return f"A customer may send {settings.ORDER_RATE} order requests in a second."


class LookRate(BaseThrottle):
    """Allow a customer `LOOKS` requests about waiting rooms in a second, in each process."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        return looks.count(str(request.user.pk), int(time.time())) <= LOOKS

    def wait(self) -> float:
        return 1 - time.time() % 1

    @property
    def rule(self) -> str:
        """A sentence for the client about this limit."""
        return f"A customer may ask for their places in waiting rooms {LOOKS} times in a second."
