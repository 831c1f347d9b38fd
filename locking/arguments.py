"""Checks of the arguments of locks. A wrong one is refused where it is passed; the message says what is wanted."""

from __future__ import annotations

import math

LONGEST_SECONDS = 1_000_000
"""11 days: the limit of every TTL, timeout and pause. Sockets and servers count milliseconds in 32 bits, so twice this
time still fits; a time limit of 50 days would end at once."""

LARGEST_COUNT = 2**63 - 1
"""Servers and Python's iterators count in 64 bits."""


def require_name(name: object) -> None:
    """Check the name of a lock.

    Raises:
        TypeError: it is no `str`.
        ValueError: it is empty.
    """
    require_text("the name of a lock", name)
    if not name:
        raise ValueError("the name of a lock must not be empty")


def require_text(argument: str, text: object) -> None:
    """Check that an argument is a `str`.

    Raises:
        TypeError: it is something else, such as `bytes` or None.
    """
    if not isinstance(text, str):
        raise TypeError(f"{argument} must be a str, not {text!r}")


def require_seconds(argument: str, seconds: object) -> None:
    """Check that a number of seconds is an `int` or a `float` that a clock can count to, NaN, or infinite.

    The caller checks the lower limit, and whether infinity is allowed.

    Raises:
        TypeError: it is something else, such as a `str`, a `Decimal` or None.
        ValueError: it is finite and more than `LONGEST_SECONDS`.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{argument} must be a number of seconds, an int or a float, not {seconds!r}")
    if LONGEST_SECONDS < seconds < math.inf:
        raise ValueError(f"{argument} must be {LONGEST_SECONDS} seconds (11 days) at most, not {seconds!r}")


def require_count(argument: str, count: object) -> None:
    """Check that a number of things is an `int` from 0 to `LARGEST_COUNT`.

    Raises:
        TypeError: it is no `int`.
        ValueError: it is out of range.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{argument} must be an int, not {count!r}")
    if not 0 <= count <= LARGEST_COUNT:
        raise ValueError(f"{argument} must be from 0 to {LARGEST_COUNT}, not {count!r}")


def require_flag(argument: str, flag: object) -> None:
    """Check that a flag is True or False. A number of seconds in its place would be taken for True.

    Raises:
        TypeError: it is no `bool`.
    """
    if not isinstance(flag, bool):
        raise TypeError(f"{argument} must be True or False, not {flag!r}")


def require_callable(argument: str, function: object) -> None:
    """Check that a function can be called: it is needed only later, where nobody could be told.

    Raises:
        TypeError: it cannot be called.
    """
    if not callable(function):
        raise TypeError(f"{argument} must be a function, not {function!r}")


def require_client(client: object, *kinds: type) -> None:
    """Check that a client is one that the lock can use.

    Args:
        kinds: the classes that it may have. The errors and connections of other clients are not known to the lock.

    Raises:
        TypeError: it has none of these classes.
    """
    if not isinstance(client, kinds):
        wanted = " or ".join(f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in kinds)
        found = f"{type(client).__module__}.{type(client).__qualname__}"
        raise TypeError(f"the client of this lock must be a {wanted}, not a {found}; clients for asyncio do not work")
