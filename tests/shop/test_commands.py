"""Commands: migrations, `sample`, `serve`, and error messages of `manage.py`."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core import management
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone
from redis import Redis

import manage
from inventory.models import StockItem
from servers import RunFolder
from shop import conservation
from shop.models import Order, Product, Sale, SaleItem
from shop.orders.place import place_order
from shop.orders.receipts import Placed
from shop.runtime.serve import refuse_busy_port, web_command
from tests.shop.conftest import raising

# Migrations


pytestmark = pytest.mark.django_db(transaction=True)


def test_the_migrations_are_complete() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def run_sample(*arguments: str) -> str:
    out = StringIO()
    call_command("sample", *arguments, stdout=out)
    return out.getvalue()


def sold_as(slug: str) -> Sale:
    return Sale.objects.get(slug=slug)


def buy(customer: int, sale: Sale, product: Product) -> Placed:
    """Place an order of one unit at its present price."""
    prices = {product.pk: SaleItem.objects.get(sale=sale, product=product).price}
    return place_order(customer=customer, sale=sale.pk, quantities={product.pk: 1}, key="k", expected_prices=prices)


def test_the_sample_can_be_repeated_and_keeps_existing_data(redis: Redis) -> None:
    run_sample("--password", "first")
    sale = sold_as("tonight")
    poster = Product.objects.get(sku="poster")
    customer = User.objects.get(username="buyer").pk
    buy(customer, sale, poster)
    said = run_sample("--password", "second")
    assert f"product {poster.pk}: Signed poster" in said
    assert (Product.objects.count(), Sale.objects.count(), SaleItem.objects.count()) == (6, 2, 6)
    received = {"headphones": 100, "keyboard": 40, "poster": 1, "lamp": 30, "camera": 12, "record": 50}
    assert dict(StockItem.objects.values_list("sku", "received")) == received
    assert StockItem.objects.get(sku="poster").on_hand == 0
    assert Order.objects.count() == 1
    assert all(row.conserved for row in conservation.figures())
    assert "second" in said
    for name, staff in (("admin", True), ("buyer", False)):
        assert authenticate(username=name, password="first") is None
        user = authenticate(username=name, password="second")
        assert isinstance(user, User)
        assert (user.is_staff, user.is_superuser) == (staff, staff)
    assert User.objects.count() == 2


def test_the_sample_changes_nothing_that_an_operator_has_changed(redis: Redis) -> None:
    run_sample()
    changed = {"name": "Mine", "description": "", "picture": "/mine.svg"}
    Product.objects.update(**changed)
    Sale.objects.update(name="Mine", stock_shown="hidden")
    SaleItem.objects.update(price=1, limit=None)
    Sale.objects.filter(slug="midnight").update(slug="mine", opens_at=timezone.now())
    before = [list(model.objects.order_by("pk").values()) for model in (Product, Sale, SaleItem, StockItem)]
    run_sample()
    after = [list(model.objects.order_by("pk").values()) for model in (Product, Sale, SaleItem, StockItem)]
    for sale in (*before[1], *after[1]):
        del sale["preheated_at"]
    assert after == before


def test_the_second_sale_of_the_sample_opens_two_minutes_later(redis: Redis) -> None:
    said = run_sample()
    first, second = sold_as("tonight"), sold_as("midnight")
    assert second.opens_at - first.opens_at >= timedelta(minutes=2)
    assert f"Sale {second.pk}, “The midnight sale”, opens at {second.opens_at:%H:%M:%S}" in said
    assert not set(first.skus) & set(second.skus)
    # After this sale, the next one gets another slug.
    Sale.objects.filter(pk=second.pk).update(opens_at=first.opens_at, closes_at=timezone.now())
    run_sample()
    assert sold_as("midnight-2").opens_at > timezone.now()


def test_each_product_of_the_sample_has_a_picture_and_texts_in_both_languages(redis: Redis) -> None:
    password = run_sample().split()[-1]
    assert len(password) >= 12
    assert authenticate(username="buyer", password=password) is not None
    texts = [sale.name_zh for sale in Sale.objects.all()]
    for product in Product.objects.all():
        picture = Path(settings.BASE_DIR) / "shop" / product.picture.lstrip("/")
        assert picture.is_file(), product
        assert picture.stat().st_size < 6000, product
        assert 1 <= product.description.count(". ") + 1 <= 2, product
        product.full_clean()
        texts += [product.name_zh, product.description_zh]
    assert [text for text in texts if not re.search("[\u4e00-\u9fff]", text)] == []


def test_the_sample_opens_a_sale_until_the_next_one(redis: Redis) -> None:
    run_sample()
    now, today = timezone.now(), sold_as("tonight")
    keyboard = Product.objects.get(sku="keyboard")
    mine = Sale.objects.create(name="Mine", opens_at=today.closes_at, closes_at=now + timedelta(days=3))
    SaleItem.objects.create(sale=mine, product=keyboard, price=1)
    assert f"Sale {today.pk}, “Tonight only”, is open until" in run_sample()

    Sale.objects.filter(pk=today.pk).update(closes_at=now)
    Sale.objects.filter(pk=mine.pk).update(opens_at=now + timedelta(hours=2))
    run_sample()
    another = sold_as("tonight-2")
    assert another.closes_at == now + timedelta(hours=2)
    assert another.is_loaded
    assert not Sale.objects.get(pk=mine.pk).is_loaded


@pytest.mark.parametrize("name", ["group-commit", "lua-queue"])
def test_the_sample_sells_with_the_strategy_that_is_asked_for(redis: Redis, name: str) -> None:
    run_sample("--strategy", name)
    sale = sold_as("tonight")
    assert (sale.strategy, sale.preheated_at is not None) == (name, True)
    customer = User.objects.get(username="buyer").pk
    poster = Product.objects.get(sku="poster")
    assert not buy(customer, sale, poster).replayed


@pytest.mark.parametrize("name", ["compute-and-overwrite", "no-such-strategy"])
def test_the_sample_refuses_unknown_strategies(redis: Redis, name: str) -> None:
    with pytest.raises(CommandError, match=name):
        run_sample("--strategy", name)
    assert not Sale.objects.exists()
    assert not Product.objects.exists()


@pytest.fixture
def busy() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_serve_refuses_a_busy_port_but_not_a_free_one(busy: socket.socket) -> None:
    port = busy.getsockname()[1]
    with pytest.raises(CommandError, match=rf"Port {port} is in use.*ss -ltnp.*{port}.*--port") as refused:
        call_command("serve", "--port", str(port))
    assert refused.value.returncode == 2, "1 would mean broken stock"
    busy.close()
    for _ in range(2):
        refuse_busy_port("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [("192.0.2.1", 8000, r"Cannot listen on 192\.0\.2\.1:8000"), ("127.0.0.1", 65536, "There is no port 65536")],
)
def test_serve_refuses_an_address_that_it_cannot_use(host: str, port: int, message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        refuse_busy_port(host, port)
    assert refused.value.returncode == 2


Serve = Callable[[], list[str]]


@pytest.fixture
def serve(
    redis: Redis, busy: socket.socket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Serve:
    """Run `serve` without starting granian, and return its warnings."""
    monkeypatch.setattr(settings, "PAYMENT_SECRET", "shared")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.execve", lambda *command: None)
    port = busy.getsockname()[1]
    busy.close()

    def warnings_of_serve() -> list[str]:
        call_command("serve", "--port", str(port))
        *warnings, address = capsys.readouterr().err.splitlines()
        assert f"http://127.0.0.1:{port}/" in address
        return warnings

    return warnings_of_serve


def test_serve_becomes_the_web_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr("os.execve", lambda *command: ran.append(command))
    serve()
    ((program, arguments, environment),) = ran
    flags = ("--port", "--processes", "--threads", "--connections")
    port, *sizes = (int(arguments[arguments.index(flag) + 1]) for flag in flags)
    assert (program, arguments) == (sys.executable, web_command("127.0.0.1", port))
    assert sizes == [settings.WEB_PROCESSES, settings.WEB_THREADS, settings.WEB_CONNECTIONS]
    assert environment["DATABASE_POOL"] == str(settings.WEB_DATABASE_CONNECTIONS)


def test_serve_warns_of_what_is_missing(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert serve() == []
    with monkeypatch.context() as away:
        away.setattr(RunFolder, "default", lambda: RunFolder(tmp_path))
        (warning,) = serve()
    assert warning.startswith("No answer from postgres and valkey")
    newest = MigrationRecorder.Migration.objects.filter(app="shop").latest("pk")
    newest.delete()
    try:
        (warning,) = serve()
    finally:
        newest.save(force_insert=True)
    assert warning.startswith("Some migrations are not applied")
    assert "manage.py migrate" in warning
    for by_word, said in ((True, "customers can mark their own orders as paid"), (False, "no order can be paid")):
        monkeypatch.setattr(settings, "PAY_WITHOUT_PROVIDER", by_word)
        assert serve() == []
        with monkeypatch.context() as without:
            without.setattr(settings, "PAYMENT_SECRET", "")
            (warning,) = serve()
        assert said in warning
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (warning,) = serve()
    assert warning.startswith("The shop runs as root")


def test_serve_closes_its_connection_to_postgres(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BaseDatabaseWrapper] = []
    create = connections.create_connection

    def noted(alias: str) -> BaseDatabaseWrapper:
        made.append(create(alias))
        return made[-1]

    monkeypatch.setattr(connections, "create_connection", noted)
    serve()
    assert [connection.connection for connection in made] == [None]


@pytest.mark.parametrize(
    ("limits", "raised", "connections"),
    [
        ((1800, 2000), (1800, 2000), 1000),  # high enough
        ((256, 2000), (1512, 2000), 1000),  # raised as needed
        ((256, 1200), (1200, 1200), 688),  # The hard limit allows fewer connections.
        ((256, 600), (600, 600), 300),  # Very low: half of the files are for connections.
    ],
)
def test_the_web_server_may_open_a_file_for_each_connection(
    settings: Any, monkeypatch: pytest.MonkeyPatch, limits: Any, raised: Any, connections: int
) -> None:
    settings.WEB_CONNECTIONS = 1000
    now = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda _: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, changed: now.append(changed))
    given = web_command("127.0.0.1", 8000)
    assert (now[-1], given[given.index("--connections") + 1]) == (raised, str(connections))


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["at its end", "while it writes"])
def test_a_broken_pipe_is_not_a_verdict(unbuffered: str) -> None:
    command = [sys.executable, "manage.py", "help", "--commands"]
    there = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.runtime.settings", "PYTHONUNBUFFERED": unbuffered}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=settings.BASE_DIR, env=there, text=True, **pipes) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (128 + signal.SIGPIPE, "")


def test_an_unexpected_error_is_status_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(management, "execute_from_command_line", raising(KeyError("ours")))
    with pytest.raises(SystemExit) as ended:
        manage.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("KeyError: 'ours'\n")
