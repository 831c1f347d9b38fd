"""How fast one customer may try."""

from __future__ import annotations

import logging
import time

from django.conf import settings
from django_redis import get_redis_connection
from redis import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

logger = logging.getLogger(__name__)

# One script: a crash between the two would leave a key that never ends. A server that has lost its data may lose the
# counts of a second too, so they are not written to its log, where each would cost a wait for the disk.
COUNT = """
    redis.set_repl(redis.REPL_NONE)
    local tries = redis.call('INCR', KEYS[1])
    if tries == 1 then
        redis.call('EXPIRE', KEYS[1], 2)
    end
    return tries
"""


class OrderRate(BaseThrottle):
    """At most `ORDER_RATE` tries a customer and second, counted in Redis for all processes, in one round trip.

    Without Redis nobody is slowed down: a throttle protects the shop, it must not close it.
    """

    def allow_request(self, request: Request, view: APIView) -> bool:
        second = int(time.time())
        key = f"rate:{request.user.pk}:{second}"
        try:
            tries = get_redis_connection("default").eval(COUNT, 1, key)
        except RedisError as error:
            logger.warning("Nobody is throttled: %s", error)
            return True
        return bool(tries <= settings.ORDER_RATE)

    def wait(self) -> float:
        return 1 - time.time() % 1
