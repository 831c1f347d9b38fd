"""Read settings from environment variables and check them, so that wrong ones are reported when a process starts."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from redis import Redis

env = environ.Env()
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
SHORTEST_KEY = 50
"""Minimum length of a secret key in characters, as `manage.py check --deploy` demands."""
YEAR = 365 * 24 * 3600
"""Maximum duration in seconds. Much longer durations would exceed the range of Python's dates."""
WEB_ADDRESS = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?/[^?#\s]*", re.IGNORECASE)
ORIGIN = re.compile(r"https?://[\w.-]+(:\d+)?", re.ASCII)
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def integer(name: str, *, default: int, minimum: int, maximum: int = 1_000_000) -> int:
    """Return a setting that is a whole number.

    Raises:
        ImproperlyConfigured: the value is not a whole number from `minimum` to `maximum`.
    """
    text = env.str(name, default=str(default))
    with suppress(ValueError):
        if minimum <= (number := int(text)) <= maximum:
            return number
    raise ImproperlyConfigured(f"{name} must be a whole number from {minimum} to {maximum}, not {text[:40]!r}.")


def seconds(name: str, *, default: float, minimum: float, maximum: float = YEAR) -> float:
    """Return a setting that is a duration in seconds, which may have a fraction.

    Raises:
        ImproperlyConfigured: the value is not a number from `minimum` to `maximum`.
    """
    text = env.str(name, default=str(default))
    with suppress(ValueError):
        if minimum <= (number := float(text)) <= maximum:
            return number
    limits = f"{minimum:g} to {maximum:.0f}"
    raise ImproperlyConfigured(f"{name} must be a number of seconds from {limits}, not {text[:40]!r}.")


def boolean(name: str, *, default: bool) -> bool:
    """Return a setting that is true or false.

    Raises:
        ImproperlyConfigured: the value is not in `BOOLEANS`. django-environ would treat any other word as false.
    """
    text = env.str(name, default="") or str(default)
    if (value := BOOLEANS.get(text.lower())) is None:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(BOOLEANS)}, not {text!r}.")
    return value


def require_packages(name: str, requirements: str, module: str) -> None:
    """Check that the packages that a setting needs are installed.

    Args:
        name: name of the setting.
        requirements: requirements file with the packages.
        module: a module of these packages, to look for.

    Raises:
        ImproperlyConfigured: the packages are not installed.
    """
    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:  # The parent package of the module is missing.
        found = False
    if not found:
        raise ImproperlyConfigured(
            f"{name} needs packages that are not installed. Install them with `.venv/bin/pip install --require-hashes "
            f"-r {requirements}`, or leave {name} off."
        )


def currency(name: str, *, default: str) -> str:
    """Return a setting that is a currency code of three capitals.

    Raises:
        ImproperlyConfigured: the value is not such a code.
    """
    code = str(env.str(name, default=default))
    if not re.fullmatch("[A-Z]{3}", code):
        raise ImproperlyConfigured(f"{name} must be a code of ISO 4217 such as EUR, not {code!r}.")
    return code


def log_level(name: str, *, default: str) -> str:
    """Return a setting that is a level of Python's `logging`, in capitals.

    Raises:
        ImproperlyConfigured: the value is not in `LOG_LEVELS`.
    """
    text = env.str(name, default=default)
    if (level := str(text).upper()) not in LOG_LEVELS:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(LOG_LEVELS)}, not {text!r}.")
    return level


def choice(name: str, *, default: str, choices: tuple[str, ...]) -> str:
    """Return a setting that is one of the words in `choices`.

    Raises:
        ImproperlyConfigured: the value is another word.
    """
    text = str(env.str(name, default=default))
    if text.lower() not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}, not {text[:40]!r}.")
    return text.lower()


def email(name: str, *, default: str) -> dict[str, Any]:
    """Return Django's settings for the mail server at a URL.

    Raises:
        ImproperlyConfigured: the value is not such a URL. The message omits it, because it may contain a password.
    """
    with suppress(ValueError, ImproperlyConfigured):
        config = dict(env.email_url_config(env.str(name, default=default)))
        if config["EMAIL_HOST"] or not config["EMAIL_BACKEND"].endswith(".smtp.EmailBackend"):
            return config
    raise ImproperlyConfigured(
        f"{name} must be smtp+tls://user:password@host:587, smtp+ssl://user:password@host:465 or consolemail://. "
        "Percent-encode special characters in the password."
    )


def web_address(name: str, *, default: str) -> str:
    """Return a setting that is the URL of a web page, or an empty text.

    Raises:
        ImproperlyConfigured: the value is not an http or https URL with a host and a path, or has a query or fragment.
    """
    address = str(env.str(name, default=default))
    if not address or WEB_ADDRESS.fullmatch(address):
        return address
    raise ImproperlyConfigured(f"{name} must be an address such as https://pay.example/pay/, not {address[:60]!r}.")


def redis_url(name: str, *, default: str) -> str:
    """Return a setting that is the URL of a Redis server, or an empty text.

    Raises:
        ImproperlyConfigured: the value is not such a URL. The message omits it, because it may contain a password.
    """
    url = str(env.str(name, default=default))
    if url and not _is_redis(url):
        raise ImproperlyConfigured(
            f"{name} must be redis://:password@host:6379/0, rediss://host:6379/0 or unix:///path/of/the/socket. "
            "Percent-encode special characters in the password."
        )
    return url


def redis_urls(name: str, *, default: list[str]) -> list[str]:
    """Return a setting that is a list of URLs of Redis servers.

    Raises:
        ImproperlyConfigured: a value is not such a URL. The message omits it.
    """
    urls = [str(url) for url in env.list(name, default=default)]
    for number, url in enumerate(urls, start=1):
        if not _is_redis(url):
            raise ImproperlyConfigured(
                f"{name} must be URLs like redis://:password@host:6379/0, separated by commas. "
                f"Number {number} is not valid. Percent-encode special characters in a password."
            )
    return urls


def origin(name: str, *, default: str) -> str:
    """Return a setting that is an origin (scheme and host without a path), or an empty text.

    Raises:
        ImproperlyConfigured: the value is not an origin.
    """
    given = str(env.str(name, default=default))
    if not given or ORIGIN.fullmatch(given):
        return given
    raise ImproperlyConfigured(f"{name} must be an origin like https://shop.example, not {given[:60]!r}.")


def origins(name: str, *, default: list[str]) -> list[str]:
    """Return a setting that is a list of origins. See `origin`.

    Raises:
        ImproperlyConfigured: one of the values is not an origin.
    """
    given = [str(origin) for origin in env.list(name, default=default)]
    for origin in given:
        if not ORIGIN.fullmatch(origin):
            raise ImproperlyConfigured(
                f"{name} must be origins like https://pictures.example, separated by commas, not {origin[:40]!r}."
            )
    return given


def database(name: str, url: str) -> dict[str, Any]:
    """Return Django's configuration for the Postgres at a URL.

    Raises:
        ImproperlyConfigured: the value is not such a URL. The message omits it, because it may contain a password.
    """
    # Suppress the warnings and errors of django-environ, because they may show a part of the password.
    with suppress(ValueError), warnings.catch_warnings(action="ignore"):
        config = dict(env.db_url_config(url))
        # django-environ uses an unknown scheme, such as postgresql+psycopg, as the name of an engine.
        if str(config.get("ENGINE")).endswith((".postgresql", ".postgis")):
            return config
    raise ImproperlyConfigured(
        f"{name} must be postgres://user:password@host:5432/name. Percent-encode special characters in the password."
    )


def _is_redis(url: str) -> bool:
    try:
        Redis.from_url(url)  # This does not connect.
    except ValueError:
        return False
    return True
