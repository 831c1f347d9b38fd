"""Limit the order requests of a customer."""

from __future__ import annotations

import time

from django.conf import settings
from django_redis import get_redis_connection
from redis import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from inventory.outages import outages

LIMITING = "To limit order requests"
"""The work that fails while Redis is away: all order requests are allowed then."""

# A script, because a crash between INCR and EXPIRE would leave a key that never expires. The counts are not written to
# the append-only file, where each would wait for the disk; losing the counts of a second does no harm.
COUNT = """
    redis.set_repl(redis.REPL_NONE)
    local tries = redis.call('INCR', KEYS[1])
    if tries == 1 then
        redis.call('EXPIRE', KEYS[1], 2)
    end
    return tries
"""


class OrderRate(BaseThrottle):
    """Allow a customer `ORDER_RATE` requests in a second, counted in Redis for all processes in one round trip.

    If Redis does not answer, all requests are allowed: the limit protects the shop and must not close it.
    """

    def allow_request(self, request: Request, view: APIView) -> bool:
        second = int(time.time())
        key = f"rate:{request.user.pk}:{second}"
        try:
            tries = get_redis_connection("default").eval(COUNT, 1, key)
        except RedisError as error:
            outages.failed(LIMITING, error)
            return True
        outages.worked(LIMITING)
        return bool(tries <= settings.ORDER_RATE)

    def wait(self) -> float:
        return 1 - time.time() % 1
