"""Count the guesses of passwords: in Redis for all processes together, and in this process while Redis is away.

An account's limit holds for each address from which it has logged in by itself, and for all other addresses together.
So nobody can keep an account closed to its owner from elsewhere, and guessing from many addresses stays limited.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from threading import Lock

from django.conf import settings
from django_redis import get_redis_connection

WINDOW = 900
"""Seconds after the first guess at which its account or address has all of its guesses again."""

KNOWN_FOR = 7 * 24 * 3600
"""Seconds for which an address is known after a log-in."""

MOST = 10_000
"""Entries that a process keeps. A process hashes one password at a time, so it adds fewer in a window."""

# KEYS: whether the address is known, the count of the account at this address, that at all unknown addresses, and that
# of the address if there is one; ARGV: the seconds of a window, then the limits of the account and of the address.
# Return 0 and count the try; or the seconds to wait, and count nothing, so that the window ends. The second value is
# whether the address is known.
# The counts are not written to the append-only file: losing them in a crash does little harm.
COUNT = """
    redis.set_repl(redis.REPL_NONE)
    local known = redis.call('EXISTS', KEYS[1])
    local counts = {KEYS[3 - known], KEYS[4]}
    local wait = 0
    for i, key in ipairs(counts) do
        if tonumber(redis.call('GET', key) or 0) >= tonumber(ARGV[i + 1]) then
            wait = math.max(wait, redis.call('TTL', key), 1)
        end
    end
    if wait == 0 then
        for _, key in ipairs(counts) do
            if redis.call('INCR', key) == 1 then
                redis.call('EXPIRE', key, ARGV[1])
            end
        end
    end
    return {wait, known}
"""
# KEYS: whether the address is known, then the counts of a try that was no guess, which may have expired since;
# ARGV: the seconds for which the address is known from now on, or 0 to leave that as it is.
TAKE_BACK = """
    redis.set_repl(redis.REPL_NONE)
    for i = 2, #KEYS do
        if tonumber(redis.call('GET', KEYS[i]) or 0) > 0 then
            redis.call('DECR', KEYS[i])
        end
    end
    if tonumber(ARGV[1]) > 0 then
        redis.call('SET', KEYS[1], 1, 'EX', ARGV[1])
    end
"""


@dataclass(frozen=True, slots=True)
class Try:
    """A try of a password.

    Args:
        account: digest of the name, which may be long and of no account.
        address: address of the client; empty if the caller is a program.
    """

    account: str
    address: str

    @classmethod
    def of(cls, username: str, address: str) -> Try:
        return cls(hashlib.sha256(username.encode(errors="surrogatepass")).hexdigest(), address)

    @property
    def known(self) -> str:
        """The key that exists while the address is known to the account."""
        pair = hashlib.sha256(f"{self.account} {self.address}".encode()).hexdigest()
        return f"{{guesses}}:known:{pair[:32]}"

    @property
    def at_address(self) -> str:
        return f"{self.elsewhere}:{self.address}"

    @property
    def elsewhere(self) -> str:
        return f"{{guesses}}:account:{self.account}"

    def limits(self, *, known: bool) -> dict[str, int]:
        """Return the keys of the counts, and their limits."""
        limits = {self.at_address if known else self.elsewhere: settings.GUESSES_PER_ACCOUNT}
        if self.address:
            limits[f"{{guesses}}:address:{self.address}"] = settings.GUESSES_PER_ADDRESS
        return limits


@dataclass(frozen=True, slots=True)
class Counted:
    """The outcome of counting.

    Args:
        wait: seconds to wait, if a limit is reached and nothing was counted; else 0.
        keys: the counts of the try.
    """

    wait: int
    keys: Sequence[str]


class RedisCounts:
    """Counts in Redis. Each method raises `RedisError` when it does not answer."""

    def count(self, tried: Try) -> Counted:
        """Count a try before its password is checked, unless a limit is reached."""
        unknown = tried.limits(known=False)
        keys = [tried.known, tried.at_address, *unknown]
        wait, known = get_redis_connection("default").eval(COUNT, len(keys), *keys, WINDOW, *unknown.values())
        return Counted(wait, list(tried.limits(known=bool(known))))

    def take_back(self, tried: Try, counted: Counted, *, right: bool) -> None:
        """Take a try back that was no guess. If its password was right, its address is known from now on."""
        keys = [tried.known, *counted.keys]
        get_redis_connection("default").eval(TAKE_BACK, len(keys), *keys, KNOWN_FOR if right and tried.address else 0)


class LocalCounts:
    """The same counts in this process.

    Args:
        most: entries to keep; the oldest goes first.
        now: returns the monotonic time in seconds.
    """

    def __init__(self, *, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._now, self._lock = most, now, Lock()
        self._entries: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def count(self, tried: Try) -> Counted:
        """See `RedisCounts.count`."""
        with self._lock:
            limits = tried.limits(known=self._read(tried.known)[0] > 0)
            wait = self._wait(limits)
            for key in limits if not wait else ():
                self._add(key, 1, WINDOW)
            return Counted(wait, list(limits))

    def take_back(self, tried: Try, counted: Counted, *, right: bool) -> None:
        """See `RedisCounts.take_back`."""
        with self._lock:
            for key in counted.keys:
                if self._read(key)[0]:
                    self._add(key, -1, WINDOW)
        if right:
            self.remember(tried)

    def remember(self, tried: Try) -> None:
        """Let the address be known from now on."""
        with self._lock:
            self._entries.pop(tried.known, None)
            if tried.address:
                self._add(tried.known, 1, KNOWN_FOR)

    def _wait(self, limits: Mapping[str, int]) -> int:
        reached = [ends for key, limit in limits.items() for count, ends in [self._read(key)] if count >= limit]
        return max((ceil(ends - self._now()) for ends in reached), default=0)

    def _read(self, key: str) -> tuple[int, float]:
        """Return the count and when it ends; 0 if it has ended."""
        count, ends = self._entries.get(key, (0, 0.0))
        return (count, ends) if ends > self._now() else (0, 0.0)

    def _add(self, key: str, units: int, seconds: float) -> None:
        count, ends = self._read(key)
        if not ends:
            self._entries.pop(key, None)
            if len(self._entries) >= self._most:
                self._entries.popitem(last=False)
            ends = self._now() + seconds
        self._entries[key] = (count + units, ends)
