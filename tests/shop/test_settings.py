"""Invalid settings are reported by name at the start. Passwords are never shown."""

from __future__ import annotations

import os
import re
import runpy
import secrets
import ssl
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from kombu import Connection
from redis import Redis

from locking.arguments import LONGEST_SECONDS

SETTINGS = Path(settings.BASE_DIR) / "shop/runtime/settings.py"
YEAR = 31_536_000
INTEGERS = {  # the minimum and the maximum
    "NUM_PROXIES": (0, 100),
    "LAB_SANDBOXES": (1, 1000),
    "WEB_THREADS": (1, 1000),
    "WEB_PROCESSES": (1, 1000),
    "WEB_CONNECTIONS": (1, 1_000_000),
    "WEB_DATABASE_CONNECTIONS": (1, 1000),  # With 0, each request would open a new connection.
    "DATABASE_POOL": (0, 1000),
    "STOCK_SEGMENTS": (1, 1000),
    "ORDER_TTL": (1, YEAR),
    "ORDER_RATE": (1, 1_000_000),
    "GUESSES_PER_ACCOUNT": (1, 1_000_000),
    "GUESSES_PER_ADDRESS": (1, 1_000_000),
    "SIGN_UPS_PER_ADDRESS": (1, 1_000_000),
    "ACCESS_TOKEN_TTL": (1, YEAR),
}
SECONDS = {
    "STOCK_LOCK_TTL": 0.1,
    "STOCK_LOCK_WAIT": 0,
    "SOLD_OUT_TTL": 0,
    "OFFER_TTL": 0,
    "PREHEAT_LEAD": 0,
    "RECONCILE_GRACE": 0,
}
"""The minimum of each duration. The maximum is a year; for a stock lock, `LONGEST_SECONDS`."""
BAD_URLS = [
    ("DATABASE_URL", "mysql://shop:sesame@db/shop"),
    ("DATABASE_URL", "postgres://shop:ses/ame@db:5432/shop"),
    ("DATABASE_URL", "postgres://shop:sesame@db:port/shop"),
    ("REDIS_URL", "http://:sesame@host:6379"),
    ("REDIS_URL", "redis://:ses/ame@host:6379"),
    ("REDIS_URL", "redis://:sesame@host:6379?db=first"),
    ("REDLOCK_URLS", "redis://one:6379/0,:sesame@two:6379/0"),
    ("EMAIL_URL", "http://shop:sesame@host:587"),
    ("EMAIL_URL", "smtp+tls://shop:ses/ame@host:587"),
]


def read(monkeypatch: pytest.MonkeyPatch, **given: str) -> dict[str, Any]:
    """Return the settings that these environment variables produce."""
    for name, value in {"SECRET_KEY": "k" * 50, **given}.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(SETTINGS))


def manage(*arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "SECRET_KEY": "k" * 50, **given}
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True, timeout=60)


def test_all_numbers_are_tested() -> None:
    text = SETTINGS.read_text()
    assert (text.count("environment.integer("), text.count("environment.seconds(")) == (len(INTEGERS), len(SECONDS))
    assert "env.int(" not in text
    assert "env.float(" not in text
    assert "env.bool(" not in text


NUMBERS = [(name, limits, "a whole number", ("1.5", "9" * 5000)) for name, limits in INTEGERS.items()] + [
    (name, (low, LONGEST_SECONDS if name.startswith("STOCK_LOCK_") else YEAR), "a number of seconds", ("nan", "-inf"))
    for name, low in SECONDS.items()
]


@pytest.mark.parametrize(("name", "limits", "kind", "no_numbers"), NUMBERS, ids=[name for name, *_ in NUMBERS])
def test_a_number_has_limits(
    monkeypatch: pytest.MonkeyPatch, name: str, limits: tuple[float, float], kind: str, no_numbers: tuple[str, str]
) -> None:
    minimum, maximum = limits
    for good in limits:
        assert read(monkeypatch, **{name: str(good)})[name] == good
    below = minimum - (1 if name in INTEGERS else 0.01)
    for bad in (str(below), str(maximum + 1), "1e300", "10s", "", *no_numbers):
        with pytest.raises(ImproperlyConfigured, match=rf"^{name} must be {kind} from {minimum} to {maximum}, not"):
            read(monkeypatch, **{name: bad})


FORMS: dict[str, tuple[str, str, str]] = {
    "CURRENCY": ("a code of ISO 4217 such as EUR, not", "CHF", "eur; EURO; E; €UR; EU1; "),
    "PAYMENT_PAGE": (
        "an address such as",
        "https://pay.example:8443/pay/",
        "pay.example; ftp://pay.example/; https://pay.example; https://a/b/?a=1; https://a;b/; https://a b/",
    ),
    "PICTURE_ORIGINS": (
        "origins like https://pictures.example",
        "https://pictures.example,http://localhost:9000",
        "https://a.example,b.example; https://b.example/; https://*; https://b.example;script-src; 'self'",
    ),
    "PUBLIC_URL": (
        "an origin like https://shop.example, not",
        "https://shop.example; http://127.0.0.1:8000; ",
        "shop.example; https://shop.example/; ftp://shop.example; https://a b",
    ),
    "REPOSITORY_URL": (
        "an address such as",
        "https://git.example/shop; ",
        "git.example; javascript:alert(1); git@git.example:shop.git",
    ),
}
"""The words of the refusal, then good values and bad values. "; " separates values, and a value may be empty."""


@pytest.mark.parametrize("name", FORMS)
def test_a_text_has_a_form(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    said, good_ones, bad_ones = FORMS[name]
    monkeypatch.setenv("PAYMENT_SECRET", "shared")
    for good in good_ones.split("; "):
        assert read(monkeypatch, **{name: good})[name] == (good.split(",") if name == "PICTURE_ORIGINS" else good)
    for bad in bad_ones.split("; "):
        with pytest.raises(ImproperlyConfigured, match=f"^{name} must be {re.escape(said)}"):
            read(monkeypatch, **{name: bad})


DATABASE, POOLED = "postgres://shop@db/shop", {"DATABASE_POOLER": "1", "LAB_ENABLED": "0"}
UNKNOWN_OPTION = "options that Celery's broker does not know"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"LOG_FORMAT": "yaml"}, "^LOG_FORMAT must be one of text, json, not 'yaml'"),
        ({"LOG_LEVEL": "LOUD"}, "^LOG_LEVEL .* DEBUG, INFO, WARNING, ERROR, CRITICAL, not 'LOUD'"),
        ({"PAYMENT_PAGE": "https://pay.example/pay/", "PAYMENT_SECRET": ""}, "^PAYMENT_PAGE needs PAYMENT_SECRET"),
        ({"DATABASE_URL": DATABASE, **POOLED, "LAB_ENABLED": "1"}, "^LAB_ENABLED needs .* without DATABASE_POOLER"),
        (POOLED, "^DATABASE_POOLER needs DATABASE_URL"),
        ({**POOLED, "DATABASE_POOLER": "ture"}, "DATABASE_POOLER must be one of"),
        ({"REDLOCK_URLS": "redis://one:6379/0,two:6379,redis://three:6379/0"}, "Number 2 is not valid"),
        ({"REDIS_URL": "redis://host:6379?db=4"}, UNKNOWN_OPTION),
        ({"REDIS_URL": "redis://host:6379/0?health_check_interval=30"}, UNKNOWN_OPTION),
        ({"REDIS_URL": "unix:///run/valkey.sock?ssl=1"}, UNKNOWN_OPTION),
    ],
)
def test_settings_that_do_not_work_are_refused(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], said: str
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with pytest.raises(ImproperlyConfigured, match=said):
        read(monkeypatch, **given)


def test_sign_ups_from_one_address_are_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch)["ACCOUNT_RATE_LIMITS"]["signup"] == "20/m/ip"
    assert read(monkeypatch, SIGN_UPS_PER_ADDRESS="500")["ACCOUNT_RATE_LIMITS"]["signup"] == "500/m/ip"


@pytest.mark.parametrize("name", ["DEBUG", "LAB_ENABLED", "HTTPS", "PAY_WITHOUT_PROVIDER"])
def test_a_boolean_is_one_of_a_few_words(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    words = {"1": True, "True": True, "on": True, "0": False, "false": False, "NO": False, "": False}
    for word, value in words.items():
        assert read(monkeypatch, **{name: word})[name] is value
    with pytest.raises(ImproperlyConfigured, match=f"{name} must be one of 1, true, .*, not 'ture'"):
        read(monkeypatch, **{name: "ture"})


@pytest.mark.parametrize("pooler", ["0", "1"])
def test_through_a_pooler_a_connection_uses_no_session_state(monkeypatch: pytest.MonkeyPatch, pooler: str) -> None:
    """Negative control: without a pooler, a connection uses session state."""
    given = {"DATABASE_URL": DATABASE, "DATABASE_POOL": "4", **POOLED, "DATABASE_POOLER": pooler}
    found = read(monkeypatch, **given)
    database = found["DATABASES"]["default"]
    uses = (database["OPTIONS"]["prepare_threshold"] is not None, "options" in database["OPTIONS"])
    assert uses == ((False, False) if pooler == "1" else (True, True))
    assert found["DATABASE_POOLER"] is database["DISABLE_SERVER_SIDE_CURSORS"] is (pooler == "1")


@pytest.mark.parametrize(("name", "url"), BAD_URLS)
def test_an_invalid_url_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch, name: str, url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"^{name} must be ") as raised:
        read(monkeypatch, **{name: url})
    assert "ses" not in str(raised.value)
    # A cause could be printed by Celery and the web server.
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)


@pytest.mark.parametrize("length", [1, 49])
def test_a_short_secret_key_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"^SECRET_KEY must have at least 50 characters") as raised:
        read(monkeypatch, SECRET_KEY="ß" * length)
    assert "ß" not in str(raised.value)


def test_https_is_one_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT", "USE_X_FORWARDED_HOST")
    on, off = read(monkeypatch, HTTPS="1"), read(monkeypatch, HTTPS="0")
    assert [on[name] for name in names] == [True] * 4
    assert [off.get(name, False) for name in names] == [False] * 4
    assert (on["NUM_PROXIES"], off["NUM_PROXIES"]) == (1, 0)
    assert read(monkeypatch, HTTPS="1", NUM_PROXIES="2")["REST_FRAMEWORK"]["NUM_PROXIES"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("https", ["1", "0"])
def test_the_check_for_deployment_finds_nothing(https: str) -> None:
    """Django's check for deployment finds no problem. Negative control: without HTTPS, it finds some."""
    given = {"HTTPS": https, "SECRET_KEY": secrets.token_hex(32), "LAB_ENABLED": "0"}
    given |= {"ORDER_TTL": "5", "OFFER_TTL": "0.5", "REDIS_URL": "rediss://host:6379/0"}
    done = manage("check", "--deploy", "--fail-level", "WARNING", **given)
    assert (done.returncode == 0, "security.W" in done.stderr) == (https == "1", https == "0"), done.stderr


def test_valid_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(
        monkeypatch,
        STOCK_SEGMENTS="5",
        OFFER_TTL="0.5",
        SOLD_OUT_TTL="5",
        LOG_LEVEL="info",
        DATABASE_URL="postgresql://shop:a%2Fb@db:5433/shop?sslmode=require",
        REDIS_URL="rediss://:a%2Fb@host:6380/3",
        REDLOCK_URLS="unix:///run/valkey.sock,redis://two:6379/0",
        EMAIL_URL="smtp+tls://shop:a%2Fb@host:587",
    )
    assert (found["STOCK_SEGMENTS"], found["OFFER_TTL"], found["SOLD_OUT_TTL"]) == (5, 0.5, 5.0)
    assert found["LOGGING"]["root"]["level"] == "INFO"
    database = found["DATABASES"]["default"]
    assert [database[part] for part in ("HOST", "PORT", "NAME", "PASSWORD")] == ["db", 5433, "shop", "a/b"]
    assert database["OPTIONS"]["sslmode"] == "require"
    assert found["CACHES"]["default"]["LOCATION"] == "rediss://:a%2Fb@host:6380/3"
    mail = ("BACKEND", "HOST", "PORT", "HOST_USER", "HOST_PASSWORD", "USE_TLS")
    smtp = "django.core.mail.backends.smtp.EmailBackend"
    assert [found[f"EMAIL_{part}"] for part in mail] == [smtp, "host", 587, "shop", "a/b", True]
    assert found["REDLOCK_URLS"] == ["unix:///run/valkey.sock", "redis://two:6379/0"]


def test_a_text_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret may begin with `$`. By default, django-environ would read it as the name of another variable."""
    secrets = {name: f"$PATH{name}" + "x" * 50 for name in ("SECRET_KEY", "PAYMENT_SECRET", "METRICS_TOKEN")}
    found = read(monkeypatch, **secrets, ALLOWED_HOSTS="a.example, b.example,", CSRF_TRUSTED_ORIGINS="")
    assert {name: found[name] for name in secrets} == secrets
    assert (found["ALLOWED_HOSTS"], found["CSRF_TRUSTED_ORIGINS"]) == (["a.example", "b.example"], [])


@pytest.mark.parametrize("option", ["", "?db=3", "?db=3&db=4"])
def test_the_broker_uses_the_same_database(monkeypatch: pytest.MonkeyPatch, redis: Redis, option: str) -> None:
    path = redis.connection_pool.connection_kwargs["path"]
    found = read(monkeypatch, REDIS_URL=f"unix://{path}{option}")
    with Connection(found["CELERY_BROKER_URL"]) as connection, closing(connection.SimpleQueue("probe")) as queue:
        queue.put("a task")
        with Redis.from_url(found["CACHES"]["default"]["LOCATION"]) as client:
            assert client.llen("probe") == 1
            queue.clear()
            client.delete("_kombu.binding.probe")


@pytest.mark.parametrize(
    ("option", "verified"),
    [
        ("", True),
        ("?ssl_cert_reqs=required", True),
        ("?ssl_ca_certs=/etc/ca.pem", True),
        ("?ssl_cert_reqs=none", False),
    ],
)
def test_celery_verifies_the_certificate_of_redis(monkeypatch: pytest.MonkeyPatch, option: str, verified: bool) -> None:
    found = read(monkeypatch, REDIS_URL=f"rediss://:word@redis:6379/0{option}")
    worker = Celery(broker=found["CELERY_BROKER_URL"], set_as_current=False)
    worker.conf.broker_use_ssl = found.get("CELERY_BROKER_USE_SSL", False)
    tls = worker.connection_for_write().ssl
    assert (tls.get("ssl_cert_reqs", ssl.CERT_REQUIRED) == ssl.CERT_REQUIRED) is verified


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [pytest.param("serve", "WEB_PROCESSES", "0", marks=pytest.mark.slow), ("check", "DATABASE_URL", "sesame")],
)
def test_a_command_reports_an_invalid_setting_in_one_line(command: str, name: str, value: str) -> None:
    done = manage(command, **{name: value})
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith(f"{name} must be ")
    assert "sesame" not in done.stderr
