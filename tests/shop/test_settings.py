"""A setting that cannot be used is named, with what it may be, before anything starts; and no password is shown."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

SETTINGS = Path(settings.BASE_DIR) / "shop/runtime/settings.py"
WHOLE = {
    "NUM_PROXIES": 0,
    "LAB_SANDBOXES": 1,
    "WEB_THREADS": 1,
    "WEB_PROCESSES": 1,
    "WEB_CONNECTIONS": 1,
    "WEB_DATABASE_CONNECTIONS": 1,  # 0 would not be "no pool": each request would open a connection
    "DATABASE_POOL": 0,
    "STOCK_SEGMENTS": 1,
    "ORDER_TTL": 1,
    "ORDER_RATE": 1,
}
SECONDS = {
    "STOCK_LOCK_TTL": 0.1,
    "STOCK_LOCK_WAIT": 0,
    "SOLD_OUT_TTL": 0,
    "OFFER_TTL": 0,
    "PREHEAT_LEAD": 0,
    "RECONCILE_GRACE": 0,
}
"""The least that each number may be."""
BAD_URLS = [
    ("DATABASE_URL", "sesame"),
    ("DATABASE_URL", "mysql://shop:sesame@db/shop"),
    ("DATABASE_URL", "postgres://shop:ses/ame@db:5432/shop"),
    ("DATABASE_URL", "postgres://shop:sesame@db:port/shop"),
    ("REDIS_URL", "sesame"),
    ("REDIS_URL", "http://:sesame@host:6379"),
    ("REDIS_URL", "redis://:ses/ame@host:6379"),
    ("REDIS_URL", "redis://:sesame@host:6379?db=first"),
    ("REDLOCK_URLS", "redis://one:6379/0,:sesame@two:6379/0"),
]


def read(monkeypatch: pytest.MonkeyPatch, **given: str) -> dict[str, Any]:
    """The settings as a process reads them that finds these in its environment."""
    for name, value in {"SECRET_KEY": "k" * 50, **given}.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(SETTINGS))


def manage(*arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "SECRET_KEY": "k" * 50, **given}
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True, timeout=60)


def test_every_number_that_the_settings_read_is_tried_here() -> None:
    text = SETTINGS.read_text()
    assert (text.count("environment.whole("), text.count("environment.seconds(")) == (len(WHOLE), len(SECONDS))
    assert "env.int(" not in text
    assert "env.float(" not in text
    assert "env.bool(" not in text


@pytest.mark.parametrize(("name", "least"), WHOLE.items())
def test_a_number_may_be_the_least_and_not_one_less_nor_a_fraction_nor_a_word(
    monkeypatch: pytest.MonkeyPatch, name: str, least: int
) -> None:
    assert read(monkeypatch, **{name: str(least)})[name] == least
    for bad in (str(least - 1), "1.5", "abc", ""):
        with pytest.raises(ImproperlyConfigured, match=rf"^{name} has to be a whole number, {least} or more, and not"):
            read(monkeypatch, **{name: bad})


@pytest.mark.parametrize(("name", "least"), SECONDS.items())
def test_a_time_may_be_the_least_and_not_less_nor_endless_nor_a_word(
    monkeypatch: pytest.MonkeyPatch, name: str, least: float
) -> None:
    assert read(monkeypatch, **{name: str(least)})[name] == least
    for bad in (str(least - 0.01), "nan", "inf", "-inf", "10s", ""):
        with pytest.raises(ImproperlyConfigured, match=rf"^{name} has to be a number of seconds, {least} or more, and"):
            read(monkeypatch, **{name: bad})


@pytest.mark.parametrize("name", ["DEBUG", "LAB_ENABLED"])
def test_a_switch_is_on_or_off_and_no_other_word(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for said, means in {
        "1": True,
        "True": True,
        "on": True,
        "0": False,
        "false": False,
        "NO": False,
        "": False,
    }.items():
        assert read(monkeypatch, **{name: said})[name] is means
    with pytest.raises(ImproperlyConfigured, match=f"{name} has to be one of 1, true, .* and not 'ture'"):
        read(monkeypatch, **{name: "ture"})


def test_a_log_level_that_there_is_not_is_named_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"^LOG_LEVEL .* DEBUG, INFO, WARNING, ERROR, CRITICAL, .* 'LOUD'"):
        read(monkeypatch, LOG_LEVEL="LOUD")


@pytest.mark.parametrize(("name", "url"), BAD_URLS)
def test_a_url_that_is_none_is_named_and_nothing_of_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, url: str
) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"^{name} has to be ") as raised:
        read(monkeypatch, **{name: url})
    assert "ses" not in str(raised.value)
    # Celery and the web server show what led to it, too.
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)


def test_of_several_urls_the_wrong_one_is_told_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImproperlyConfigured, match="number 2 is none"):
        read(monkeypatch, REDLOCK_URLS="redis://one:6379/0,two:6379,redis://three:6379/0")


def test_what_can_be_used_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(
        monkeypatch,
        STOCK_SEGMENTS="5",
        OFFER_TTL="0.5",
        SOLD_OUT_TTL="5",
        LOG_LEVEL="info",
        DATABASE_URL="postgresql://shop:a%2Fb@db:5433/shop?sslmode=require",
        REDIS_URL="rediss://:a%2Fb@host:6380/3",
        REDLOCK_URLS="unix:///run/valkey.sock,redis://two:6379/0",
    )
    assert (found["STOCK_SEGMENTS"], found["OFFER_TTL"], found["SOLD_OUT_TTL"]) == (5, 0.5, 5.0)
    assert found["LOGGING"]["root"]["level"] == "INFO"
    database = found["DATABASES"]["default"]
    assert [database[part] for part in ("HOST", "PORT", "NAME", "PASSWORD")] == ["db", 5433, "shop", "a/b"]
    assert database["OPTIONS"]["sslmode"] == "require"
    assert found["CACHES"]["default"]["LOCATION"] == "rediss://:a%2Fb@host:6380/3"
    assert found["REDLOCK_URLS"] == ["unix:///run/valkey.sock", "redis://two:6379/0"]
    assert read(monkeypatch, REDIS_URL="unix:///run/valkey.sock")["CELERY_BROKER_URL"].startswith("redis+socket:///run")


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [("check", "ORDER_TTL", "abc"), ("serve", "WEB_PROCESSES", "0"), ("check", "DATABASE_URL", "sesame")],
)
def test_a_command_says_it_in_one_line_and_ends_without_a_verdict(command: str, name: str, value: str) -> None:
    done = manage(command, **{name: value})

    assert done.returncode == 2
    assert done.stderr.startswith(f"{name} has to be ")
    assert len(done.stderr.splitlines()) == 1
    assert "sesame" not in done.stderr
    assert done.stdout == ""


def test_a_command_with_settings_that_can_be_used_goes_on() -> None:
    done = manage("check", ORDER_TTL="5", OFFER_TTL="0.5", LOG_LEVEL="info", REDIS_URL="rediss://host:6379/0")

    assert done.returncode == 0, done.stderr
