"""The preflight before a sale: each check passes and fails, and links to the documentation."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import QuerySet
from django.test import Client, override_settings
from django_redis import get_redis_connection
from redis import Redis

from inventory.models import StockItem
from shop import heartbeat
from shop.management.commands.preflight import find
from shop.models import Sale, SaleItem
from shop.preflight import finding, run, sale_checks, server_checks, settings_checks
from shop.preflight.finding import Finding
from shop.sales import lifecycle
from tests.docs.pages import PAGES, leads_to, moved, plain
from tests.factories import OnSale, on_sale
from tests.shop.conftest import Config, Gone
from tests.shop.test_admin import text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

GREEN = {"ALLOWED_HOSTS": ["shop.example"], "HTTPS": True, "DEBUG": False, "PAYMENT_SECRET": "s" * 32,
         "PAYMENT_PAGE": "https://pay.example/", "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
         "EMAIL_HOST": "mail.example", "PUBLIC_URL": "https://shop.example"}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "changed"),
    [
        ("payments", {"PAYMENT_SECRET": "", "PAY_WITHOUT_PROVIDER": True}),
        ("payments", {"PAYMENT_PAGE": ""}),
        ("mails", {"EMAIL_BACKEND": "django.core.mail.backends.console.EmailBackend"}),
        ("mails", {"PUBLIC_URL": ""}),
    ],
)
def test_a_setting_is_green_or_a_warning(check: str, changed: dict[str, Any]) -> None:
    """`test_each_red_line_is_reached_and_shown` has the settings that are red."""
    with override_settings(**GREEN):
        assert getattr(settings_checks, check)().level == "ok"
        with override_settings(**changed):
            assert getattr(settings_checks, check)().level == "warning"


@pytest.mark.parametrize(("free", "level"), [(50, "ok"), (5, "warning"), (1, "red")])
def test_the_disk(monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=100, free=free))
    assert settings_checks.disk().level == level


@pytest.fixture
def session() -> Iterator[Callable[[str], None]]:
    """Execute statements that change settings of this Postgres session, until the test ends."""

    def execute(statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    yield execute
    connection.close()


def test_migrations_have_to_be_applied() -> None:
    recorder = MigrationRecorder(connection)
    name = max(name for app, name in recorder.applied_migrations() if app == "shop")
    recorder.record_unapplied("shop", name)
    try:
        assert "migrate" in server_checks.postgres().text
    finally:
        recorder.record_applied("shop", name)
    assert server_checks.postgres().level == "ok"


def test_postgres_has_to_accept_the_connections_of_a_web_server(settings: Any) -> None:
    assert server_checks.connections().level == "ok"
    settings.WEB_PROCESSES = 1000
    assert server_checks.connections().level == "red"
    settings.DATABASE_POOLER = True
    assert server_checks.connections().level == "warning"


@pytest.mark.parametrize(
    ("address", "level"),
    [
        ("redis://:word@redis:6379/0", "ok"),
        ("rediss://:word@redis:6379/0", "ok"),
        ("rediss://:word@redis:6379/0?ssl_cert_reqs=none", "warning"),
        ("rediss://:word@redis:6379/0?ssl_cert_reqs=required", "ok"),
    ],
)
def test_the_certificate_of_redis_has_to_be_verified(settings: Any, address: str, level: str) -> None:
    settings.REDIS_LOCATION = address
    assert server_checks.redis_certificate().level == level


@contextmanager
def redis_that_tells(**facts: Any) -> Iterator[None]:
    """Give the checks a Redis whose `INFO` contains these facts."""
    real = get_redis_connection("default")
    told = SimpleNamespace(
        info=lambda *sections: real.info(*sections) | facts, time=real.time, config_get=real.config_get
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_checks, "get_redis_connection", lambda alias: told)
        yield


def test_redis_has_to_keep_queued_orders(config: Config, settings: Any) -> None:
    config("appendonly", "yes")
    config("appendfsync", "always")
    assert server_checks.redis_keeps().level == "ok"
    config("appendfsync", "everysec")
    assert server_checks.redis_keeps().level == "warning"
    config("maxmemory-policy", "allkeys-lru")
    assert server_checks.redis_keeps().level == "warning", "no sale queues"
    offer = on_sale({"a": 1}, strategy="lua-queue", preheat=False)
    sale = Sale.objects.get(pk=offer.sale)
    assert (server_checks.redis_keeps().level, sale_checks.strategy(sale).level) == ("red", "red")
    settings.QUEUED_ORDERS_MAY_BE_LOST = True
    assert (server_checks.redis_keeps().level, sale_checks.strategy(sale).level) == ("warning", "warning")


@pytest.mark.parametrize(("kind", "check"), [("worker", server_checks.workers), ("beat", server_checks.beat)])
def test_celery_has_to_be_alive(redis: Redis, kind: str, check: Callable[[], Finding]) -> None:
    assert check().level == "red"
    heartbeat.sign(kind, "here")
    assert check().level == "ok"
    redis.zincrby(heartbeat.KEY, -heartbeat.EXPIRES - 1, f"{kind} here")
    assert check().level == "red", "it has been silent for too long"
    for name in ("one", "two"):
        heartbeat.sign(kind, name)
    assert heartbeat.alive()[kind] == 2
    assert check().level == ("warning" if kind == "beat" else "ok")


def test_a_dead_process_is_not_alive_again_when_the_clock_of_redis_is_set_back(redis: Redis) -> None:
    heartbeat.sign(heartbeat.WORKER, "dead")
    redis.zincrby(heartbeat.KEY, 3600, f"{heartbeat.WORKER} dead")
    assert heartbeat.alive()[heartbeat.WORKER] == 0
    heartbeat.sign(heartbeat.WORKER, "here")
    assert heartbeat.alive()[heartbeat.WORKER] == 1
    assert redis.zrange(heartbeat.KEY, 0, -1) == [f"{heartbeat.WORKER} here".encode()]


@pytest.mark.parametrize(("off", "level"), [(0, "ok"), (-5, "warning"), (60, "red")])
def test_clocks_have_to_agree(monkeypatch: pytest.MonkeyPatch, off: float, level: str) -> None:
    monkeypatch.setattr(server_checks, "time", SimpleNamespace(time=lambda: time.time() + off))
    assert server_checks.clocks().level == level


def levels(offer: OnSale) -> dict[str, str]:
    return {each.check: each.level for each in run.of_sale(Sale.objects.get(pk=offer.sale))}


def test_a_sale_that_is_ready_is_green() -> None:
    offer, coming = on_sale({"a": 1}), on_sale({"b": 1}, opens=timedelta(hours=1), closes=timedelta(hours=2))
    assert set(levels(offer).values()) == set(levels(coming).values()) == {"ok"}


RED_SALES: list[tuple[str, Callable[[OnSale], object]]] = [
    ("Window", lambda offer: lifecycle.close(offer.sale)),
    ("Window", lambda offer: lifecycle.pause(offer.sale)),
    ("Stock", lambda offer: stock_of(offer).update(on_hand=0)),
    ("Stock", lambda offer: SaleItem.objects.filter(sale=offer.sale).delete()),
    ("Stock is loaded", lambda offer: Sale.objects.filter(pk=offer.sale).update(preheated_at=None)),
    ("Stock is loaded", lambda offer: on_sale(dict.fromkeys(offer.products, 0), preheat=False)),
    ("Strategy", lambda offer: Sale.objects.filter(pk=offer.sale).update(strategy="unknown")),
    ("Audit", lambda offer: stock_of(offer).update(on_hand=0)),
]
"""A check, and a change that makes it red."""


def stock_of(offer: OnSale) -> QuerySet[StockItem]:
    return StockItem.objects.filter(sku__in=offer.products)


MODULES = (settings_checks, server_checks, sale_checks, run)


def findings() -> Iterator[tuple[ModuleType, ast.Call]]:
    """Yield each call in the code that makes a finding, with its module."""
    for module in MODULES:
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
                yield module, call


@pytest.fixture
def red(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], Finding]:
    """The red findings of this test, by the module and line that report them."""
    found: dict[tuple[str, int], Finding] = {}

    def recording(*args: Any) -> Finding:
        frame, made = sys._getframe(1), Finding(*args)
        if made.level == "red":
            found[frame.f_globals["__name__"], frame.f_lineno] = made
        return made

    for module in MODULES:
        monkeypatch.setattr(module, "Finding", recording)
    return found


def test_each_red_line_is_reached_and_shown(
    red: dict[tuple[str, int], Finding],
    session: Callable[[str], None],
    config: Config,
    redis: Redis,
    redis_gone: Gone,
    postgres_gone: Gone,
    staff: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for changed in (
        {"DEBUG": True, "HTTPS": False, "ALLOWED_HOSTS": ["*"], "PAYMENT_SECRET": "short", "WEB_PROCESSES": 1000},
        {"ALLOWED_HOSTS": ["web", "127.0.0.1", "localhost"], "PAYMENT_SECRET": "", "PAY_WITHOUT_PROVIDER": False},
        {"PAYMENT_PROVIDER": "no.such.Provider", "REDIS_LOCATION": "rediss://redis:6379/0"},
    ):
        with override_settings(**{**GREEN, **changed}):
            run.of_shop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=100, free=1))
        patch.setattr(server_checks, "time", SimpleNamespace(time=lambda: time.time() + 60))
        patch.setattr(MigrationExecutor, "migration_plan", lambda self, targets: ["one is missing"])
        run.of_shop()
    for change in ("synchronous_commit = off", "default_transaction_read_only = on"):
        session(f"SET {change}")
        run.of_shop()
        session("RESET ALL")
    for facts in ({"role": "slave"}, {"cluster_enabled": 1}):
        with redis_that_tells(**facts):
            run.of_shop()
    offer = on_sale({"queued": 1}, strategy="lua-queue", preheat=False)
    used: int = redis.info("memory")["used_memory"]  # type: ignore[index]
    config("maxmemory-policy", "allkeys-lru")
    config("maxmemory", str(int(used * 1.1)))
    run.of_shop()
    run.of_sale(Sale.objects.get(pk=offer.sale))
    config("maxmemory", "0")
    config("maxmemory-policy", "noeviction")
    for number, (check, change) in enumerate(RED_SALES):
        offer = on_sale({f"sku-{number}": 1})
        change(offer)
        assert levels(offer)[check] == "red"
    for gone in (redis_gone, postgres_gone):
        with gone():
            run.of_shop()
    assert red.keys() == {
        (module.__name__, call.lineno)
        for module, call in findings()
        if not isinstance(call.args[1], ast.Constant) or call.args[1].value == "red"
    }
    assert len(red) == 30, "the code has all its checks"
    monkeypatch.setattr(run, "of_shop", lambda: list(red.values()))
    offer = on_sale({"shown": 1})
    page = staff("view_sale").get(f"/admin/shop/sale/{offer.sale}/preflight/").text
    shown = [text(entry) for entry in re.findall(r"<li[^>]*>(.*?)</li>", page, re.DOTALL)]
    for each in red.values():
        line = f"red {each.check} {' '.join(each.text.split())} {each.link}"
        assert shown.count(line) == 1, line


BEFORE = ast.Constant(finding.BEFORE)
"""The default section of a finding."""


def advised() -> list[tuple[str, str]]:
    """Return the advice and the section of each finding in the code that is not ok."""
    found = []
    for module, call in findings():
        if ast.unparse(call.args[1]) != "'ok'":
            # Each argument is a text, or the name of a constant.
            advice, address = (eval(ast.unparse(each), vars(module)) for each in (*call.args[3:], BEFORE)[:2])  # noqa: S307
            found.append((advice, address))
    return found


def advice_elsewhere(pages: Mapping[str, str] = PAGES) -> set[str]:
    """Return the advice of each finding whose section does not contain it."""
    return {advice for advice, address in advised() if plain(advice) not in plain(leads_to(address, pages))}


def test_the_section_of_each_finding_has_its_advice() -> None:
    assert advice_elsewhere() == set()
    assert len(advised()) > 35
    assert all(len(advice.split()) >= 2 for advice, _ in advised())


@pytest.mark.parametrize(
    ("words", "others"),
    [("Set `DEBUG=0` and restart.", "Unset `DEBUG`."), ("stop all but one.", "stop all others.")],
)
def test_advice_that_the_section_does_not_give_is_found(words: str, others: str) -> None:
    """Negative control: advice is reported if its section has other words, or another section has its words."""
    (advice,) = advice_elsewhere(moved(words, others))
    assert plain(advice) == plain(words)


def test_the_command_prints_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    offer = on_sale({"a": 1})
    with pytest.raises(SystemExit):
        call_command("preflight", str(offer.sale))
    assert "No worker is alive" in " ".join(capsys.readouterr().out.split())


@override_settings(**GREEN)
def test_the_command_prints_json_and_ends_with_0_when_nothing_is_red(capsys: pytest.CaptureFixture[str]) -> None:
    heartbeat.sign("worker", "here")
    heartbeat.sign("beat", "here")
    call_command("preflight", Sale.objects.get(pk=on_sale({"a": 1}).sale).slug, "--json")
    printed = json.loads(capsys.readouterr().out)
    assert printed["level"] in ("ok", "warning")
    assert {each["check"] for each in printed["checks"]} >= {"DEBUG", "Workers", "Audit"}


def test_a_sale_is_found_by_its_number_and_by_a_slug_of_digits() -> None:
    """A sale is found by its number, and by a slug of digits only. One random slug in 43 has only digits."""
    first, second = Sale.objects.get(pk=on_sale({"a": 1}).sale), Sale.objects.get(pk=on_sale({"b": 1}).sale)
    Sale.objects.filter(pk=second.pk).update(slug="03676712")
    assert [find(str(first.pk)), find(first.slug), find("03676712")] == [first, first, second]
    Sale.objects.filter(pk=second.pk).update(slug=str(first.pk))
    with pytest.raises(CommandError, match="is the number of one sale and the slug of another"):
        find(str(first.pk))


@pytest.mark.parametrize("wanted", ["none", "2147483647", "9" * 30])
def test_a_sale_that_does_not_exist_is_reported(wanted: str) -> None:
    with pytest.raises(CommandError, match=f"There is no sale {wanted}") as error:
        call_command("preflight", wanted)
    assert error.value.returncode == 2


@pytest.mark.parametrize("address", ["", "https://git.example/shop"])
def test_the_page_of_a_sale_links_to_its_checks(staff: Callable[..., Client], settings: Any, address: str) -> None:
    settings.REPOSITORY_URL = address
    operator, link = staff("view_sale"), f"/admin/shop/sale/{on_sale({'a': 1}).sale}/"
    assert f"{link}preflight" in operator.get(f"{link}change/").text
    page = operator.get(f"{link}preflight/").text
    assert all(each in page for each in ("Not ready", "No worker is alive", "docs/deployment.md#start"))
    assert (f'href="{address}/blob/main/docs/deployment.md#start"' in page) is bool(address)
    assert staff("view_order").get(f"{link}preflight/").status_code == 403
