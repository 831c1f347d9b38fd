"""Reads settings from the environment, and says of one that cannot be used which one it is, and what it may be.

It is said once, when the settings are read, and not where one is used for the first time.
"""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from redis import Redis

env = environ.Env()
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
YES_AND_NO = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def whole(name: str, *, default: int, least: int) -> int:
    """A whole number.

    Raises:
        ImproperlyConfigured: it is none, or less than `least`.
    """
    text = env.str(name, default=str(default))
    with suppress(ValueError):
        if (number := int(text)) >= least:
            return number
    raise ImproperlyConfigured(f"{name} has to be a whole number, {least} or more, and not {text!r}.")


def seconds(name: str, *, default: float, least: float) -> float:
    """A time, which may have a fraction.

    Raises:
        ImproperlyConfigured: it is no number of seconds, one without an end, or less than `least`.
    """
    text = env.str(name, default=str(default))
    with suppress(ValueError):
        if least <= (number := float(text)) < math.inf:
            return number
    raise ImproperlyConfigured(f"{name} has to be a number of seconds, {least:g} or more, and not {text!r}.")


def flag(name: str, *, default: bool) -> bool:
    """Whether something is switched on.

    Raises:
        ImproperlyConfigured: it is neither yes nor no. environ would take any other word for no.
    """
    text = env.str(name, default="") or str(default)
    if (said := YES_AND_NO.get(text.lower())) is None:
        raise ImproperlyConfigured(f"{name} has to be one of {', '.join(YES_AND_NO)}, and not {text!r}.")
    return said


def log_level(name: str, *, default: str) -> str:
    """A level of Python's `logging`, in capitals.

    Raises:
        ImproperlyConfigured: it is none.
    """
    text = env.str(name, default=default)
    if (level := str(text).upper()) not in LOG_LEVELS:
        raise ImproperlyConfigured(f"{name} has to be one of {', '.join(LOG_LEVELS)}, and not {text!r}.")
    return level


def redis_url(name: str, *, default: str) -> str:
    """The URL of a Redis; an empty one will do.

    Raises:
        ImproperlyConfigured: it is none. Its text is not shown: there may be a password in it.
    """
    url = str(env.str(name, default=default))
    if url and not _is_redis(url):
        raise ImproperlyConfigured(
            f"{name} has to be redis://:password@host:6379/0, rediss://host:6379/0 or unix:///path/of/the/socket. "
            "Percent-encode what is not a letter or digit in the password."
        )
    return url


def redis_urls(name: str, *, default: list[str]) -> list[str]:
    """The URLs of several Redis.

    Raises:
        ImproperlyConfigured: one is none. No text is shown.
    """
    urls = [str(url) for url in env.list(name, default=default)]
    for number, url in enumerate(urls, start=1):
        if not _is_redis(url):
            raise ImproperlyConfigured(
                f"{name} has to be URLs such as redis://:password@host:6379/0, separated by commas; "
                f"number {number} is none. Percent-encode what is not a letter or digit in a password."
            )
    return urls


def database(name: str, url: str) -> dict[str, Any]:
    """Django's configuration for the Postgres at a URL.

    Raises:
        ImproperlyConfigured: it is no URL of a Postgres. Its text is not shown: there may be a password in it.
    """
    with suppress(ValueError), warnings.catch_warnings(action="ignore"):
        config = dict(env.db_url_config(url))
        # environ takes a scheme that it does not know for an engine: postgresql+psycopg is none of Django's.
        if str(config.get("ENGINE")).endswith((".postgresql", ".postgis")):
            return config
    # What environ says itself, in errors and in warnings, may show a part of the password.
    raise ImproperlyConfigured(
        f"{name} has to be postgres://user:password@host:5432/name. "
        "Percent-encode what is not a letter or digit in the password."
    )


def _is_redis(url: str) -> bool:
    try:
        Redis.from_url(url)  # connects to nothing yet
    except ValueError:
        return False
    return True
