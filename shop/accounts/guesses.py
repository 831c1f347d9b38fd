"""Limit how often a password may be guessed, on every page and address that checks one.

Each try is counted before its password is hashed, and taken back when the password was right. So tries at the same
time cannot exceed the limit, and no try beyond it costs a hash. A library such as django-axes counts after the check,
so that forty tries at once pass, and it has one limit for accounts and addresses.
"""

from __future__ import annotations

import logging
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, cast

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.http import HttpRequest
from redis import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from shop.accounts.errors import TooManyGuesses
from shop.accounts.guess_counts import Counted, LocalCounts, RedisCounts, Try

logger = logging.getLogger(__name__)

shared, local = RedisCounts(), LocalCounts()


class GuardedBackend(ModelBackend):
    """Django's accounts and permissions, with a limited number of guesses for each account and each address.

    While Redis does not answer, each process keeps the same limits by itself: an operator must be able to log in then.
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
        tried = Try.of(username, address_of(request) if request is not None else "")
        counts, counted = _count(tried)
        user = None
        try:
            user = super().authenticate(request, username=username, password=password, **more)
        except BaseException:
            _take_back(counts, tried, counted, right=False)
            raise
        if user is not None:
            _take_back(counts, tried, counted, right=True)
            local.remember(tried)
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


def _count(tried: Try) -> tuple[RedisCounts | LocalCounts, Counted]:
    """Return where the try was counted, and the counts.

    Raises:
        TooManyGuesses: one of the counts is at its limit.
    """
    counts: RedisCounts | LocalCounts = shared
    try:
        counted = shared.count(tried)
    except RedisError as error:
        logger.warning("Guesses of passwords are counted in this process alone: Redis does not answer: %s", error)
        counts, counted = local, local.count(tried)
    if counted.wait:
        raise TooManyGuesses(counted.wait)
    return counts, counted


def _take_back(counts: RedisCounts | LocalCounts, tried: Try, counted: Counted, *, right: bool) -> None:
    try:
        counts.take_back(tried, counted, right=right)
    except RedisError as error:
        logger.warning("A right password counts as a guess, because Redis does not answer: %s", error)
