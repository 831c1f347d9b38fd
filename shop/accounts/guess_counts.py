"""Count password guesses: in Redis for all processes together, or in this process while Redis is away.

An IP address is *known* to an account that has logged in from it. Each known address has its own count for the account,
and all unknown addresses share one count for the account. So attackers elsewhere cannot lock the owner out, and their
guesses stay limited.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil
from threading import Lock

from django.conf import settings
from django_redis import get_redis_connection

WINDOW = 900
"""Seconds until a count of guesses expires, from its first guess. Then the count begins at 0 again."""

KNOWN_FOR = 7 * 24 * 3600
"""Seconds after a log-in for which the IP address stays known to the account."""

MOST = 10_000
"""Maximum number of counts and known addresses in the memory of a process.

Because hashing a password is slow, a process adds fewer than this in `WINDOW` seconds.
"""

# A count is a Redis hash. `under_way` is the number of passwords that are being checked now. `tries` is that number
# plus the number of wrong passwords. So concurrent tries cannot exceed a limit. The caller also learns whether wrong
# passwords alone have reached the limit, or only together with the passwords that are being checked. If a process is
# killed, its tries stay under way until the count expires.
#
# KEYS: the key that exists if the address is known; the counts of the account at this address, of the account at all
# unknown addresses, and of the address, if the try has an address.
# ARGV: the seconds of a window; the limits of the account and of the address.
# Count the try in both counts, or in neither if one of them has reached its limit: a try that is refused at one limit
# must not use up the other limit.
# Return three numbers. The first is the seconds until the count expires if its wrong passwords alone have reached the
# limit, or the longer time if both counts have; else 0. The second is 1 if a limit is reached only together with the
# passwords that are being checked, else 0. The third is 1 if the address is known, else 0.
# The counts are not in the append-only file, because losing them in a crash does little harm.
COUNT = """
    redis.set_repl(redis.REPL_NONE)
    local known = redis.call('EXISTS', KEYS[1])
    local counts = {KEYS[3 - known], KEYS[4]}
    local wait, busy = 0, 0
    for i, key in ipairs(counts) do
        local limit = tonumber(ARGV[i + 1])
        local tries = tonumber(redis.call('HGET', key, 'tries') or 0)
        local under_way = tonumber(redis.call('HGET', key, 'under_way') or 0)
        if tries - under_way >= limit then
            wait = math.max(wait, redis.call('TTL', key), 1)
        elseif tries >= limit then
            busy = 1
        end
    end
    if wait == 0 and busy == 0 then
        for _, key in ipairs(counts) do
            redis.call('HINCRBY', key, 'tries', 1)
            redis.call('HINCRBY', key, 'under_way', 1)
            if redis.call('TTL', key) < 0 then
                redis.call('EXPIRE', key, ARGV[1])
            end
        end
    end
    return {wait, busy, known}
"""
# KEYS: the key that exists if the address is known; then the counts of the ended try. A count may have expired.
# ARGV: 1 if the password was wrong, else 0; the seconds for which the address becomes known, or 0 for no change.
FINISH = """
    redis.set_repl(redis.REPL_NONE)
    for i = 2, #KEYS do
        for _, field in ipairs(ARGV[1] == '1' and {'under_way'} or {'under_way', 'tries'}) do
            if tonumber(redis.call('HGET', KEYS[i], field) or 0) > 0 then
                redis.call('HINCRBY', KEYS[i], field, -1)
            end
        end
    end
    if tonumber(ARGV[2]) > 0 then
        redis.call('SET', KEYS[1], 1, 'EX', ARGV[2])
    end
"""


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt to log in with a password.

    Args:
        account: digest of the user name of the log-in. There may be no account with this name.
        address: IP address of the client; empty if the caller is a program.
    """

    account: str
    address: str

    @classmethod
    def of(cls, username: str, address: str) -> Try:
        return cls(hashlib.sha256(username.encode(errors="surrogatepass")).hexdigest(), address)

    @property
    def known(self) -> str:
        """The Redis key that exists while the address is known to the account."""
        pair = hashlib.sha256(f"{self.account} {self.address}".encode()).hexdigest()
        return f"{{guesses}}:known:{pair[:32]}"

    @property
    def at_address(self) -> str:
        return f"{self.elsewhere}:{self.address}"

    @property
    def elsewhere(self) -> str:
        return f"{{guesses}}:tries:account:{self.account}"

    def limits(self, *, known: bool) -> dict[str, int]:
        """Return the limits of the counts that the try belongs to, by Redis key."""
        limits = {self.at_address if known else self.elsewhere: settings.GUESSES_PER_ACCOUNT}
        if self.address:
            limits[f"{{guesses}}:tries:address:{self.address}"] = settings.GUESSES_PER_ADDRESS
        return limits


class Outcome(Enum):
    """How a try has ended: the password was right, wrong, or not checked."""

    RIGHT = "right"
    WRONG = "wrong"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of counting a try. If `wait` or `busy` is set, the try was refused and not counted.

    Args:
        wait: seconds to wait if wrong guesses have reached a limit; else 0.
        busy: whether the passwords that are being checked use up the rest of a limit.
        keys: keys of the counts to which the try belongs.
    """

    wait: int
    busy: bool
    keys: Sequence[str]


class RedisCounts:
    """Counts in Redis. Each method raises `RedisError` when Redis does not answer."""

    def count(self, tried: Try) -> Counted:
        """Count a try before its password is checked, unless one of its counts has reached its limit."""
        unknown = tried.limits(known=False)
        keys = [tried.known, tried.at_address, *unknown]
        wait, busy, known = get_redis_connection("default").eval(COUNT, len(keys), *keys, WINDOW, *unknown.values())
        return Counted(wait, bool(busy), list(tried.limits(known=bool(known))))

    def finish(self, tried: Try, counted: Counted, outcome: Outcome) -> None:
        """End a try. Only a wrong password stays counted. A right password makes the address known to the account."""
        keys = [tried.known, *counted.keys]
        known_for = KNOWN_FOR if outcome is Outcome.RIGHT and tried.address else 0
        get_redis_connection("default").eval(FINISH, len(keys), *keys, int(outcome is Outcome.WRONG), known_for)

    def forgive(self, tried: Try) -> None:
        """Delete the wrong guesses for the account at this address, and make the address known to the account."""
        with get_redis_connection("default").pipeline() as commands:
            commands.delete(tried.at_address)
            commands.set(tried.known, 1, ex=KNOWN_FOR)
            commands.execute()


class LocalCounts:
    """Counts in the memory of this process, for the time in which Redis is away.

    Args:
        most: maximum number of entries; the oldest is deleted first.
        now: returns the monotonic time in seconds.
    """

    def __init__(self, *, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._now, self._lock = most, now, Lock()
        self._entries: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._under_way: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def count(self, tried: Try) -> Counted:
        """See `RedisCounts.count`."""
        with self._lock:
            limits = tried.limits(known=self._read(tried.known)[0] > 0)
            full = {key: limit for key, limit in limits.items() if self._read(key)[0] >= limit}
            wait = self._wait(full)
            if not full:
                self._under_way.update(list(limits))
                for key in limits:
                    self._add(key, 1, WINDOW)
            return Counted(wait, bool(full) and not wait, list(limits))

    def finish(self, tried: Try, counted: Counted, outcome: Outcome) -> None:
        """See `RedisCounts.finish`."""
        with self._lock:
            self._under_way -= Counter(counted.keys)
            for key in counted.keys if outcome is not Outcome.WRONG else ():
                if self._read(key)[0]:
                    self._add(key, -1, WINDOW)
        if outcome is Outcome.RIGHT:
            self.remember(tried)

    def forgive(self, tried: Try) -> None:
        """See `RedisCounts.forgive`."""
        with self._lock:
            self._entries.pop(tried.at_address, None)
        self.remember(tried)

    def remember(self, tried: Try) -> None:
        """Make the IP address of a try known to the account of the try."""
        with self._lock:
            self._entries.pop(tried.known, None)
            if tried.address:
                self._add(tried.known, 1, KNOWN_FOR)

    def _wait(self, full: Mapping[str, int]) -> int:
        ends = [self._read(key)[1] for key, limit in full.items() if self._read(key)[0] - self._under_way[key] >= limit]
        return max((ceil(end - self._now()) for end in ends), default=0)

    def _read(self, key: str) -> tuple[int, float]:
        """Return a count and the monotonic time in seconds at which it expires; zeros if it has expired."""
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
