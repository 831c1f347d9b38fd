"""Limit how often a password may be guessed, wherever the shop checks one: storefront, admin and API.

Each try is counted before its password is hashed, and removed from the count afterwards if the password was not wrong.
So concurrent tries cannot exceed the limit, and no password is hashed for a try beyond the limit. If wrong passwords
alone have reached the limit, no further try is allowed until the window ends. If passwords that are still being checked
use up the limit, the client may try again after a second.

A right password is not counted, but it has to be hashed, too. In each process, at most `hashers.PLACES` threads hash
a password or wait to hash one. The tries for one account may use at most half of these threads, and so may the tries
from one IP address. Otherwise a single client with an account could keep everybody else from logging in.

The shop does not use django-axes, because that library counts after the check: forty concurrent tries would pass. It
also has only one limit for both accounts and IP addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address, ip_network
from threading import Lock
from typing import Any, cast

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.http import HttpRequest
from redis import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from inventory.outages import outages
from shop.accounts.errors import TooManyGuesses, TriesUnderWay
from shop.accounts.guess_counts import Counted, LocalCounts, Outcome, RedisCounts, Try
from shop.accounts.hashers import PLACES

COUNTING = "Counting guesses of passwords in Redis"
"""The work that the log reports as failing while Redis does not answer. Each process then counts for itself."""

MOST_AT_ONCE = max(1, PLACES // 2)
"""Maximum number of passwords for one account, or from one IP address, that a process checks at the same time."""

shared, local = RedisCounts(), LocalCounts()
_checked: Counter[str] = Counter()
"""Number of passwords that this process is checking, by account and by IP address."""
_checked_lock = Lock()


class GuardedBackend(ModelBackend):
    """Django's `ModelBackend` with a limit on wrong passwords for each account and each IP address.

    While Redis does not answer, each process counts for itself, so that operators can still log in.
    """

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **more: Any
    ) -> User | None:
        """Return the user with this name and password, or None.

        Raises:
            TooManyGuesses, TriesUnderWay, HashingBusy: the password was not checked.
        """
        if username is None or password is None:
            return None
        tried = Try.of(username, address_of(request) if request is not None else "")
        with _one_of_few(tried):
            counts, counted = _count(tried)
            outcome = Outcome.UNCHECKED
            try:
                user = super().authenticate(request, username=username, password=password, **more)
                outcome = Outcome.WRONG if user is None else Outcome.RIGHT
            finally:
                _finish(counts, tried, counted, outcome)
        if user is not None:
            local.remember(tried)
        return user


def forgive(request: HttpRequest, username: str) -> None:
    """Clear an account's count of wrong passwords at the IP address from which a new password was set.

    Make this address known to the account, too. The account's counts at other addresses stay. The count of this address
    for all accounts stays, too.
    """
    tried = Try.of(username, address_of(request))
    local.forgive(tried)
    try:
        shared.forgive(tried)
    except RedisError as error:
        outages.failed(COUNTING, error)


def address_of(request: HttpRequest) -> str:
    """Return the IP address of the client behind `NUM_PROXIES` proxies, or for IPv6 the /64 network of the client.

    A client can use any address of its IPv6 network, so a limit for a single address would not stop it.
    """
    given = BaseThrottle().get_ident(cast("Request", request))
    try:
        address = ip_address(given)
    except ValueError:
        return str(given)[:64]
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, 64), strict=False))
    return str(address)


@contextmanager
def _one_of_few(tried: Try) -> Iterator[None]:
    """Context manager that counts a password as being checked by this process.

    Raises:
        TriesUnderWay: this process is already checking `MOST_AT_ONCE` passwords for this account or from this address.
    """
    names = [name for name in (tried.account, tried.address) if name]
    with _checked_lock:
        if any(_checked[name] >= MOST_AT_ONCE for name in names):
            raise TriesUnderWay
        _checked.update(names)
    try:
        yield
    finally:
        with _checked_lock:
            _checked.subtract(names)
            for name in names:
                if not _checked[name]:
                    del _checked[name]


def _count(tried: Try) -> tuple[RedisCounts | LocalCounts, Counted]:
    """Count a try, in Redis or in this process. Return the object that counted it, and the result.

    Raises:
        TooManyGuesses, TriesUnderWay: one of the counts has reached its limit.
    """
    counts: RedisCounts | LocalCounts = shared
    try:
        counted = shared.count(tried)
    except RedisError as error:
        outages.failed(COUNTING, error)
        counts, counted = local, local.count(tried)
    else:
        outages.worked(COUNTING)
    if counted.wait:
        raise TooManyGuesses(counted.wait)
    if counted.busy:
        raise TriesUnderWay
    return counts, counted


def _finish(counts: RedisCounts | LocalCounts, tried: Try, counted: Counted, outcome: Outcome) -> None:
    """End a try. If Redis does not answer, the try counts as under way until the window ends."""
    try:
        counts.finish(tried, counted, outcome)
    except RedisError as error:
        outages.failed(COUNTING, error)
