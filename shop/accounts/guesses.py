"""Limit how often a password may be guessed, on every page and address that checks one.

Each try is counted in Redis before its password is hashed, and taken back when the password was right. So tries at the
same time cannot exceed the limit, and no try beyond it costs a hash. A library such as django-axes counts after the
check, so that forty tries at once pass, and it has one limit for accounts and addresses.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.http import HttpRequest
from django_redis import get_redis_connection
from redis import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from shop.accounts.errors import TooManyGuesses

logger = logging.getLogger(__name__)

WINDOW = 900
"""Seconds after the first guess at which its account or address has all of its guesses again."""

# KEYS: the counts; ARGV: the seconds of a window, then the limit of each count.
# Return 0 and count the try; or the seconds to wait, and count nothing, so that the window ends.
# The counts are not written to the append-only file: losing them in a crash does little harm.
COUNT = """
    redis.set_repl(redis.REPL_NONE)
    local wait = 0
    for i, key in ipairs(KEYS) do
        if tonumber(redis.call('GET', key) or 0) >= tonumber(ARGV[i + 1]) then
            wait = math.max(wait, redis.call('TTL', key), 1)
        end
    end
    if wait == 0 then
        for _, key in ipairs(KEYS) do
            if redis.call('INCR', key) == 1 then
                redis.call('EXPIRE', key, ARGV[1])
            end
        end
    end
    return wait
"""
# KEYS: the counts of a try that was no guess. A count may have expired since.
TAKE_BACK = """
    redis.set_repl(redis.REPL_NONE)
    for _, key in ipairs(KEYS) do
        if tonumber(redis.call('GET', key) or 0) > 0 then
            redis.call('DECR', key)
        end
    end
"""


class GuardedBackend(ModelBackend):
    """Django's accounts and permissions, with a limited number of guesses for each account and each address.

    If Redis does not answer, all tries are allowed: an operator has to be able to log in then. `shop.hashers` still
    limits how many passwords are checked at once.
    """

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **more: Any
    ) -> User | None:
        """Return the user with this name and password, or None.

        Raises:
            TooManyGuesses, HashingBusy: the password was not checked.
        """
        if username is None or password is None:
            return None
        counts = _counts(username, request)
        _count(counts)
        user = None
        try:
            user = super().authenticate(request, username=username, password=password, **more)
        except BaseException:
            _take_back(counts)
            raise
        if user is not None:
            _take_back(counts)
        return user


def address_of(request: HttpRequest) -> str:
    """Return the address of the client behind `NUM_PROXIES` proxies; of IPv6 the network, all of which a client has."""
    given = BaseThrottle().get_ident(cast("Request", request))
    try:
        address = ip_address(given)
    except ValueError:
        return str(given)[:64]
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, 64), strict=False))
    return str(address)


def _counts(username: str, request: HttpRequest | None) -> dict[str, int]:
    """Return the keys of the counts of a try, and their limits."""
    name = hashlib.sha256(username.encode(errors="surrogatepass")).hexdigest()
    counts = {f"{{guesses}}:account:{name}": settings.GUESSES_PER_ACCOUNT}
    if request is not None:
        counts[f"{{guesses}}:address:{address_of(request)}"] = settings.GUESSES_PER_ADDRESS
    return counts


def _count(counts: dict[str, int]) -> None:
    """Raises:
    TooManyGuesses: one of the counts is at its limit.
    """
    if wait := int(_run(COUNT, list(counts), WINDOW, *counts.values()) or 0):
        raise TooManyGuesses(wait)


def _take_back(counts: dict[str, int]) -> None:
    _run(TAKE_BACK, list(counts))


def _run(script: str, keys: Sequence[str], *arguments: int) -> Any:
    try:
        return get_redis_connection("default").eval(script, len(keys), *keys, *arguments)
    except RedisError as error:
        logger.warning("Guesses of passwords are not limited, because Redis does not answer: %s", error)
        return None
