"""A cache in the memory of one process. One caller refreshes a value while other callers use the old value."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from django.db import connection

Key = TypeVar("Key")
Value = TypeVar("Value")

TimeToLive = float | Callable[[float], float]
"""Seconds for which a value may be used, counted from the start of loading; or a function that returns them.

The function gets the number of seconds that loading took. So a value that loads slowly can be used for longer.
"""


@dataclass(frozen=True, slots=True, eq=False)
class CacheEntry(Generic[Value]):
    """A cached value. Entries are equal only if they are the same object, so a changed entry is always noticed.

    Args:
        value: None when nothing is cached.
        refresh_at: monotonic time from which one caller may refresh the value.
        expires_at: monotonic time from which the value must not be used.
    """

    value: Value | None = None
    refresh_at: float = -math.inf
    expires_at: float = -math.inf


class Cache(Generic[Key, Value]):
    """Values in the memory of one process, with a time to live.

    Django's caches do not fit here: they copy a value each time it is read or written.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: dict[Key, CacheEntry[Value]] = {}
        self._missing: CacheEntry[Value] = CacheEntry()
        self._loading: dict[Key, Future[Value | None]] = {}

    def get(self, key: Key) -> CacheEntry[Value]:
        """Return the entry of a key, even if it has expired."""
        return self._entries.get(key, self._missing)

    def put(self, key: Key, value: Value, *, refresh_at: float, expires_at: float = math.inf) -> None:
        """Store a value. It replaces any entry of the key."""
        with self._mutex:
            self._entries[key] = CacheEntry(value, refresh_at, expires_at)

    def replace(self, key: Key, old: CacheEntry[Value], new: CacheEntry[Value]) -> None:
        """Store an entry if `old` is still the entry of the key. Otherwise do nothing."""
        with self._mutex:
            if self.get(key) is old:
                self._entries[key] = new

    def claim(self, due: Mapping[Key, CacheEntry[Value]], *, until: float) -> dict[Key, CacheEntry[Value]] | None:
        """Claim the refresh of some entries: no other caller refreshes them before `until`.

        Args:
            until: monotonic time from which another caller may claim the refresh.

        Returns:
            The claimed entries as they are stored now. None if an entry of `due` has changed; then nothing is claimed.
        """
        with self._mutex:
            if any(self.get(key) is not entry for key, entry in due.items()):
                return None
            claimed = {key: replace(entry, refresh_at=until) for key, entry in due.items()}
            self._entries.update(claimed)
        return claimed

    def get_or_load(
        self,
        key: Key,
        load: Callable[[Key], Value | None],
        *,
        ttl: TimeToLive,
        stale_if: type[Exception] | tuple[type[Exception], ...] = (),
        stale_while_loading: bool = False,
    ) -> Value | None:
        """Return a cached value, or load it.

        In the second half of a value's time to live, one caller loads the value again, and other callers use the old
        value. So callers need not wait when the value expires. Without a usable value, one caller loads it. The others
        wait for this load, and share its result or its error.

        Args:
            load: returns the current value; None is not cached.
            ttl: for how long a loaded value may be used.
            stale_if: if `load` raises one of these errors while the cached value has not expired, return the cached
                value.
            stale_while_loading: whether other callers use an expired value, of any age, while one caller loads.
        """
        now = time.monotonic()
        entry = self.get(key)
        if now >= entry.expires_at:
            return self._load_once(key, entry, load, ttl, waits=not stale_while_loading)
        claimed = None if now < entry.refresh_at else self.claim({key: entry}, until=entry.expires_at)
        if claimed is None:
            return entry.value
        try:
            return self._load_once(key, claimed[key], load, ttl, waits=False)
        except stale_if:
            return entry.value

    def reload(self, key: Key, load: Callable[[Key], Value | None], *, ttl: TimeToLive) -> Value | None:
        """Load a value again even if it is cached. Cache the new value if it is not None, and return it.

        Other callers use the old value meanwhile.

        Args:
            load, ttl: as in `get_or_load`.
        """
        return self._load(key, self.get(key), load, ttl)

    def _load_once(
        self,
        key: Key,
        entry: CacheEntry[Value],
        load: Callable[[Key], Value | None],
        ttl: TimeToLive,
        *,
        waits: bool,
    ) -> Value | None:
        """Return a loaded value. Do not load it again if another caller is loading it or has just loaded it.

        Args:
            entry: the entry of the key, as the caller has read it.
            waits: whether to wait for a caller that is loading, even if `entry` has a value.
        """
        if ttl == 0:  # Without caching, a shared load could return a value from before this call.
            return self._load(key, entry, load, ttl)
        mine: Future[Value | None] = Future()
        with self._mutex:
            newest = self.get(key)
            if newest is not entry and time.monotonic() < newest.expires_at:
                return newest.value
            loading = self._loading.setdefault(key, mine)
        if loading is not mine:
            if entry.value is not None and not waits:
                return entry.value
            # Return the connection to the pool before waiting: the thread that loads the value may need it.
            if not connection.in_atomic_block:
                connection.close()
            return loading.result()
        try:
            mine.set_result(self._load(key, newest, load, ttl))
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._mutex:
                if self._loading.get(key) is mine:
                    del self._loading[key]
        return mine.result()

    def _load(
        self, key: Key, entry: CacheEntry[Value], load: Callable[[Key], Value | None], ttl: TimeToLive
    ) -> Value | None:
        began = time.monotonic()
        value = load(key)
        if value is not None:
            seconds = ttl(time.monotonic() - began) if callable(ttl) else ttl
            # Store nothing if `forget` was called meanwhile: the value may have been read before the change.
            self.replace(key, entry, CacheEntry(value, began + seconds / 2, began + seconds))
        return value

    def forget(self, key: Key) -> None:
        """Drop the value of a key. A load in progress will not be cached, and later callers load again."""
        with self._mutex:
            self._loading.pop(key, None)
            self._entries[key] = CacheEntry()

    def clear(self) -> None:
        """Drop all values. Loads in progress will not be cached, and later callers load again."""
        with self._mutex:
            self._loading.clear()
            self._entries.clear()
            self._missing = CacheEntry()
