"""Read settings from environment variables and check them. A process with a wrong setting reports it at its start."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.core.exceptions import ImproperlyConfigured
from environ import Env
from redis import Redis

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
SHORTEST_KEY = 50
"""Minimum length of a secret key in characters, as `manage.py check --deploy` demands."""
YEAR = 365 * 24 * 3600
"""Maximum duration in seconds. Much longer durations would exceed the range of Python's dates."""
WEB_ADDRESS = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?/[^?#\s]*", re.IGNORECASE)
ORIGIN = re.compile(r"https?://[\w.-]+(:\d+)?", re.ASCII)
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


BROKER_OPTIONS = {
    "redis": frozenset[str](),
    "rediss": frozenset({"ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile"}),
    "unix": frozenset({"db"}),
}
"""For each scheme: the options that the URL of a Redis server may have. Celery's broker knows only these options."""


def text(name: str, *, default: str = "") -> str:
    """Return a setting unchanged.

    django-environ would treat a value that begins with `$` as the name of another variable. A secret may begin so.
    """
    return os.environ.get(name, default)


def texts(name: str, *, default: list[str]) -> list[str]:
    """Return a setting that is a list of texts, separated by commas. Spaces around a text are removed."""
    given = os.environ.get(name)
    return default if given is None else [item for part in given.split(",") if (item := part.strip())]


def integer(name: str, *, default: int, minimum: int, maximum: int = 1_000_000) -> int:
    """Return a setting that is a whole number.

    Raises:
        ImproperlyConfigured: the value is not a whole number from `minimum` to `maximum`.
    """
    given = text(name, default=str(default))
    with suppress(ValueError):
        if minimum <= (number := int(given)) <= maximum:
            return number
    raise ImproperlyConfigured(f"{name} must be a whole number from {minimum} to {maximum}, not {given[:40]!r}.")


def seconds(name: str, *, default: float, minimum: float, maximum: float = YEAR) -> float:
    """Return a setting that is a duration in seconds, which may have a fraction.

    Raises:
        ImproperlyConfigured: the value is not a number from `minimum` to `maximum`.
    """
    given = text(name, default=str(default))
    with suppress(ValueError):
        if minimum <= (number := float(given)) <= maximum:
            return number
    limits = f"{minimum:g} to {maximum:.0f}"
    raise ImproperlyConfigured(f"{name} must be a number of seconds from {limits}, not {given[:40]!r}.")


def boolean(name: str, *, default: bool) -> bool:
    """Return a setting that is true or false.

    Raises:
        ImproperlyConfigured: the value is not in `BOOLEANS`. django-environ would treat any other word as false.
    """
    given = text(name) or str(default)
    if (value := BOOLEANS.get(given.lower())) is None:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(BOOLEANS)}, not {given!r}.")
    return value


def require_packages(name: str, requirements: str, module: str) -> None:
    """Check that the packages that a setting needs are installed.

    Args:
        name: name of the setting.
        requirements: requirements file with the packages.
        module: a module of these packages. If Python finds it, the packages count as installed.

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
    code = text(name, default=default)
    if not re.fullmatch("[A-Z]{3}", code):
        raise ImproperlyConfigured(f"{name} must be a code of ISO 4217 such as EUR, not {code!r}.")
    return code


def log_level(name: str, *, default: str) -> str:
    """Return a setting that is a level of Python's `logging`, in capitals.

    Raises:
        ImproperlyConfigured: the value is not in `LOG_LEVELS`.
    """
    given = text(name, default=default)
    if (level := given.upper()) not in LOG_LEVELS:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(LOG_LEVELS)}, not {given!r}.")
    return level


def choice(name: str, *, default: str, choices: tuple[str, ...]) -> str:
    """Return a setting that is one of the words in `choices`.

    Raises:
        ImproperlyConfigured: the value is another word.
    """
    given = text(name, default=default)
    if given.lower() not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}, not {given[:40]!r}.")
    return given.lower()


def email(name: str, *, default: str) -> dict[str, Any]:
    """Return Django's settings for the mail server at a URL.

    Raises:
        ImproperlyConfigured: the value is not such a URL. The message omits it, because it may contain a password.
    """
    with suppress(ValueError, ImproperlyConfigured):
        config = dict(Env.email_url_config(text(name, default=default)))
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
    address = text(name, default=default)
    if not address or WEB_ADDRESS.fullmatch(address):
        return address
    raise ImproperlyConfigured(f"{name} must be an address such as https://pay.example/pay/, not {address[:60]!r}.")


def redis_url(name: str, *, default: str) -> str:
    """Return a setting that is the URL of a Redis server, or an empty text.

    Raises:
        ImproperlyConfigured: the value is not such a URL, or has options that Celery's broker does not know. The
            message omits the value, because it may contain a password.
    """
    url = text(name, default=default)
    if url and not _is_redis(url):
        raise ImproperlyConfigured(
            f"{name} must be redis://:password@host:6379/0, rediss://host:6379/0 or unix:///path/of/the/socket. "
            "Percent-encode special characters in the password."
        )
    parts = urlsplit(url)
    if unknown := parse_qs(parts.query, keep_blank_values=True).keys() - BROKER_OPTIONS.get(parts.scheme, frozenset()):
        raise ImproperlyConfigured(
            f"{name} has options that Celery's broker does not know: {', '.join(sorted(unknown))}. "
            "Name the database as the path, as in redis://host:6379/4."
        )
    return url


def broker_url(url: str) -> str:
    """Return the URL of a Redis server in the form for Celery's broker, which differs for a Unix socket."""
    if not url.startswith("unix://"):
        return url
    place, _, query = url.partition("?")
    number = parse_qs(query).get("db", ["0"])[0]  # If there are several, redis-py takes the first, too.
    return f"redis+socket{place.removeprefix('unix')}?virtual_host={number}"


def redis_urls(name: str, *, default: list[str]) -> list[str]:
    """Return a setting that is a list of URLs of Redis servers.

    Raises:
        ImproperlyConfigured: a value is not such a URL. The message omits it.
    """
    urls = texts(name, default=default)
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
    given = text(name, default=default)
    if not given or ORIGIN.fullmatch(given):
        return given
    raise ImproperlyConfigured(f"{name} must be an origin like https://shop.example, not {given[:60]!r}.")


def origins(name: str, *, default: list[str]) -> list[str]:
    """Return a setting that is a list of origins. See `origin`.

    Raises:
        ImproperlyConfigured: one of the values is not an origin.
    """
    given = texts(name, default=default)
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
        config = dict(Env.db_url_config(url))
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
