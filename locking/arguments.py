"""Argument checks for locks. A wrong argument raises immediately, with a message that says what is allowed."""

from __future__ import annotations

import math

LONGEST_SECONDS = 1_000_000
"""Limit of every TTL, timeout and pause: 11 days. Sockets and servers count milliseconds in signed 32-bit numbers, so
even twice this limit still fits. A time limit of 25 days would overflow."""

LARGEST_COUNT = 2**63 - 1
"""Limit of every count: servers and Python's iterators count in signed 64-bit numbers."""


def require_name(name: object) -> str:
    """Check the name of a lock, and return its text.

    Raises:
        TypeError: `name` is not a `str`.
        ValueError: `name` is empty.
    """
    text = require_text("the name of a lock", name)
    if not text:
        raise ValueError("the name of a lock must not be empty")
    return text


def require_text(argument: str, text: object) -> str:
    """Check that an argument is a `str`, and return it as a plain `str`.

    A member of a `str` enum equals its text, but `format` and `hash` use the member's name. So the member and its text
    would name two different locks.

    Raises:
        TypeError: `text` has another type, such as `bytes` or None.
    """
    if not isinstance(text, str):
        raise TypeError(f"{argument} must be a str, not {text!r}")
    return str.__str__(text)


def require_seconds(argument: str, seconds: object) -> None:
    """Check that `seconds` is an `int` or a `float`, and is at most `LONGEST_SECONDS`, infinite, or NaN.

    The caller checks the lower limit, and whether NaN and infinity are allowed.

    Raises:
        TypeError: `seconds` has another type, such as `str`, `Decimal` or None.
        ValueError: `seconds` is finite and more than `LONGEST_SECONDS`.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{argument} must be a number of seconds, an int or a float, not {seconds!r}")
    if LONGEST_SECONDS < seconds < math.inf:
        raise ValueError(f"{argument} must be {LONGEST_SECONDS} seconds (11 days) at most, not {seconds!r}")


def require_count(argument: str, count: object) -> int:
    """Check that `count` is an `int` from 0 to `LARGEST_COUNT`, and return it as a plain `int`.

    A member of an `int` enum equals its number, but `format` may use its name, which a server would refuse.

    Raises:
        TypeError: `count` is not an `int`.
        ValueError: `count` is out of range.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{argument} must be an int, not {count!r}")
    if not 0 <= count <= LARGEST_COUNT:
        raise ValueError(f"{argument} must be from 0 to {LARGEST_COUNT}, not {count!r}")
    return int.__int__(count)


def require_flag(argument: str, flag: object) -> None:
    """Check that `flag` is True or False. A number of seconds, passed by mistake, would otherwise count as True.

    Raises:
        TypeError: `flag` is not a `bool`.
    """
    if not isinstance(flag, bool):
        raise TypeError(f"{argument} must be True or False, not {flag!r}")


def require_callable(argument: str, function: object) -> None:
    """Check that `function` can be called.

    Callbacks such as `on_lost` run later, in a background thread, where an error would reach no caller.

    Raises:
        TypeError: `function` cannot be called.
    """
    if not callable(function):
        raise TypeError(f"{argument} must be a function, not {function!r}")


def require_client(client: object, *kinds: type) -> None:
    """Check that `client` is an instance of a class that the lock can use.

    Args:
        kinds: the accepted classes. A client of another class raises errors that the lock does not handle.

    Raises:
        TypeError: `client` is an instance of none of these classes.
    """
    if not isinstance(client, kinds):
        wanted = " or ".join(f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in kinds)
        found = f"{type(client).__module__}.{type(client).__qualname__}"
        raise TypeError(f"the client of this lock must be a {wanted}, not a {found}; clients for asyncio do not work")
