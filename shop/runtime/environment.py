"""Read settings from the environment and check them.

A setting that cannot be used is reported by its name when the settings are loaded, not where it is first used.
"""

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
"""Characters of a secret key, as `manage.py check --deploy` demands."""
YEAR = 365 * 24 * 3600
"""Seconds: no duration is longer. Far longer ones would leave the range of dates."""
WEB_ADDRESS = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?/[^?#\s]*", re.IGNORECASE)
ORIGIN = re.compile(r"https?://[\w.-]+(:\d+)?", re.ASCII)
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def integer(name: str, *, default: int, minimum: int, maximum: int = 1_000_000) -> int:
    """Return a whole number.

    Raises:
        ImproperlyConfigured: the value is not a whole number from `minimum` to `maximum`.
    """
    text = env.str(name, default=str(default))
    with suppress(ValueError):
        if minimum <= (number := int(text)) <= maximum:
            return number
    raise ImproperlyConfigured(f"{name} must be a whole number from {minimum} to {maximum}, not {text[:40]!r}.")


def seconds(name: str, *, default: float, minimum: float, maximum: float = YEAR) -> float:
    """Return a duration in seconds, which may have a fraction.

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
    """Return whether something is switched on.

    Raises:
        ImproperlyConfigured: the value is none of `BOOLEANS`. environ alone would take any other word for false.
    """
    text = env.str(name, default="") or str(default)
    if (value := BOOLEANS.get(text.lower())) is None:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(BOOLEANS)}, not {text!r}.")
    return value


def require_packages(name: str, requirements: str, module: str) -> None:
    """Check that the packages which a setting needs are installed.

    Args:
        name: of the setting.
        requirements: file that names the packages.
        module: one that they bring.

    Raises:
        ImproperlyConfigured: they are not installed.
    """
    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:  # the package that the module is in
        found = False
    if not found:
        raise ImproperlyConfigured(
            f"{name} needs packages that are not installed. Install them with `.venv/bin/pip install --require-hashes "
            f"-r {requirements}`, or leave {name} off."
        )


def currency(name: str, *, default: str) -> str:
    """Return a currency code of three capitals.

    Raises:
        ImproperlyConfigured: the value is not one.
    """
    code = str(env.str(name, default=default))
    if not re.fullmatch("[A-Z]{3}", code):
        raise ImproperlyConfigured(f"{name} must be a code of ISO 4217 such as EUR, not {code!r}.")
    return code


def log_level(name: str, *, default: str) -> str:
    """Return a level of Python's `logging` in capitals.

    Raises:
        ImproperlyConfigured: the value is none of `LOG_LEVELS`.
    """
    text = env.str(name, default=default)
    if (level := str(text).upper()) not in LOG_LEVELS:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(LOG_LEVELS)}, not {text!r}.")
    return level


def choice(name: str, *, default: str, choices: tuple[str, ...]) -> str:
    """Return one of some words.

    Raises:
        ImproperlyConfigured: the value is none of them.
    """
    text = str(env.str(name, default=default))
    if text.lower() not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}, not {text[:40]!r}.")
    return text.lower()


def email(name: str, *, default: str) -> dict[str, Any]:
    """Return Django's settings for the mail server at a URL.

    Raises:
        ImproperlyConfigured: it is not such a URL. It is not shown, because it may contain a password.
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
    """Return the URL of a web page, or an empty text.

    Raises:
        ImproperlyConfigured: the value is not an http or https URL with a host and a path, or has a query or fragment.
    """
    address = str(env.str(name, default=default))
    if not address or WEB_ADDRESS.fullmatch(address):
        return address
    raise ImproperlyConfigured(f"{name} must be an address such as https://pay.example/pay/, not {address[:60]!r}.")


def redis_url(name: str, *, default: str) -> str:
    """Return the URL of a Redis, or an empty text.

    Raises:
        ImproperlyConfigured: the value is not such a URL. It is not shown, because it may contain a password.
    """
    url = str(env.str(name, default=default))
    if url and not _is_redis(url):
        raise ImproperlyConfigured(
            f"{name} must be redis://:password@host:6379/0, rediss://host:6379/0 or unix:///path/of/the/socket. "
            "Percent-encode special characters in the password."
        )
    return url


def redis_urls(name: str, *, default: list[str]) -> list[str]:
    """Return the URLs of several Redis servers.

    Raises:
        ImproperlyConfigured: one of the values is not such a URL. They are not shown.
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
    """Return an origin, which is a scheme and a host without a path, or an empty text.

    Raises:
        ImproperlyConfigured: the value is not an origin.
    """
    given = str(env.str(name, default=default))
    if not given or ORIGIN.fullmatch(given):
        return given
    raise ImproperlyConfigured(f"{name} must be an origin like https://shop.example, not {given[:60]!r}.")


def origins(name: str, *, default: list[str]) -> list[str]:
    """Return origins: a scheme and a host, without a path.

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
        ImproperlyConfigured: it is not such a URL. It is not shown, because it may contain a password.
    """
    # Ignore the warnings and errors of environ, which may show a part of the password.
    with suppress(ValueError), warnings.catch_warnings(action="ignore"):
        config = dict(env.db_url_config(url))
        # environ takes an unknown scheme, such as postgresql+psycopg, for the name of an engine.
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
