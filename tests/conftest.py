"""Real servers for the whole run, an empty Redis for each test, and tests that are expected to fail."""

from __future__ import annotations

import gc
import importlib
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test import TransactionTestCase
from django.test import client as test_client
from django.urls import clear_url_caches
from django_redis import get_redis_connection
from pytest_django import DjangoDbBlocker
from redis import Redis

from inventory import sold_out
from inventory.outages import outages
from inventory.strategies import registry
from locking import LeaseLost, LockTimeout
from servers import Servers
from shop import redis_connections
from shop.api import throttles
from shop.sales import offers
from tests import migrated

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

# Rewrite assertions in support modules, too, so that a failure shows the values.
pytest.register_assert_rewrite(*[f"tests.{room}" for room in ("faults", "inventory", "lab", "loadtest", "locking")])


ALL_SLOW = re.compile(r"^pytestmark = \[?\s*(pytest\.mark\.slow|\*?IN_BROWSER)\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="rounds of each fault and strategy in tests/faults (1)")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say in the header of a run that slow tests are left out."""
    return ["slow tests are left out; run them with: make test-slow"] if config.option.markexpr == "not slow" else []


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file of slow tests in a run that leaves them out: the import takes as long as a few tests."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return bool(ALL_SLOW.search(collection_path.read_text())) or None


@pytest.fixture(scope="session")
def _django_set_urlconf() -> None:
    """Disable four fixtures of pytest-django, which run for each test: no test uses their markers or Django's sites."""


_django_clear_site_cache = _django_isolate_apps = _template_string_if_invalid_marker = _django_set_urlconf


@pytest.fixture(scope="session")
def servers(django_test_environment: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Servers]:
    with django_db_blocker.unblock():
        migrated.provide(settings.RUN_FOLDER)
    with Servers(settings.RUN_FOLDER) as running:
        yield running


@pytest.fixture(scope="session")
def django_db_setup(servers: Servers) -> None:
    """Use the migrated test database in the data of the servers, instead of a new database."""
    connection.settings_dict["NAME"] = settings.DATABASES["default"]["NAME"] = migrated.NAME


KEPT = {"django_migrations", "django_content_type", "auth_permission"}
"""Tables that are not emptied. Migrations fill them, and nothing would fill them again after a test."""


@cache
def emptying() -> tuple[str, str]:
    """Return the statements that lock all tables and empty them, cached because looking up the tables is slow."""
    tables = sorted(set(connection.introspection.django_table_names(only_existing=True)) - KEPT)
    quoted = [connection.ops.quote_name(table) for table in tables]
    locked = f"LOCK TABLE {', '.join(quoted)} IN SHARE ROW EXCLUSIVE MODE"
    return locked, "; ".join(f"DELETE FROM {table}" for table in quoted)


def empty(case: TransactionTestCase) -> None:
    """Empty the tables after a test that may have committed.

    Django would use TRUNCATE, which recreates the files of every table, and insert content types and permissions again.
    DELETE is faster for a few rows. The lock waits for open transactions that write, as TRUNCATE does.
    """
    connection.cursor().execute("RESET ALL")  # The next test has the same session.
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # Skip foreign key checks, because all rows go.
        for statement in emptying():
            cursor.execute(statement)


TransactionTestCase._fixture_teardown = empty  # type: ignore[method-assign]
# Keep the connection for the next test, because to start a session costs Postgres more than most tests do.
TransactionTestCase._should_reload_connections = lambda case: False  # type: ignore[method-assign]


keep_context = test_client.store_rendered_templates


def keep_first_context(store: dict[str, Any], *sent: Any, **more: Any) -> None:
    """Keep only the context of the page for `response.context`. Django would also keep the contexts of its parts."""
    if not store:
        keep_context(store, *sent, **more)


test_client.store_rendered_templates = keep_first_context


@pytest.fixture
def redis(servers: Servers) -> Redis:
    """Empty the shop's Redis and what this process has cached of it, and return a client."""
    client = get_redis_connection("default")
    client.flushall()
    offers.cache.clear()
    sold_out.forget()
    outages._failing.clear()
    redis_connections.breaker.end()
    throttles.breaker.end()
    for name in ("lua", "segmented-redis"):
        registry.get(name).unended.clear()  # type: ignore[attr-defined] - what an earlier test could not tell its Redis
    return client


@pytest.fixture
def full(redis: Redis) -> Callable[[], AbstractContextManager[None]]:
    """A context manager that makes Redis full: Redis responds, and refuses writes."""

    @contextmanager
    def without_memory() -> Iterator[None]:
        redis.config_set("maxmemory", "1")
        try:
            yield
        finally:
            redis.config_set("maxmemory", "0")

    return without_memory


@pytest.fixture
def lab_disabled(settings: Any) -> Iterator[None]:
    """The URLs of a shop that is served without the lab."""
    from shop.runtime import urls  # Tests that need no shop do not import it.

    settings.LAB_ENABLED = False
    importlib.reload(urls)
    clear_url_caches()
    yield
    settings.LAB_ENABLED = True
    importlib.reload(urls)
    clear_url_caches()


# Tests in Chromium. Only their fixtures import Playwright, because the import takes as long as a few tests.


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, started once for all tests of a module."""
    from tests.browser import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def web_port(django_db_setup: None) -> Iterator[int]:
    """The port of the shop's web server, which runs on the test database."""
    from tests.shop.web_server import web_server

    with web_server() as (port, _):
        yield port


@pytest.fixture
def port(request: pytest.FixtureRequest) -> int:
    """The port of a web server, or of the shop in this process for a test that uses `live_server`."""
    if "live_server" in request.fixturenames:
        return int(request.getfixturevalue("live_server").thread.port)
    return int(request.getfixturevalue("web_port"))


@pytest.fixture
def enter(browser: Browser, port: int) -> Iterator[Callable[..., BrowserContext]]:
    """A function that opens the browser of a visitor or of a customer."""
    from tests.shop.browser_support import entering

    with entering(browser, f"http://127.0.0.1:{port}") as enter:
        yield enter


SLOW = (
    *("faults", "rush", "postgres", "door", "admin", "rungs", "etcd", "model", "schedules", "redis", "strategies"),
    *("checkout", "conformance", "split_stock", "behaviour", "metrics", "pages", "zookeeper", "ladder_command"),
    *("schedules_on_servers", "controls", "schedules_on_postgres", "redlock", "rungs_under_load", "browser"),
    *("admin_addresses", "comparison_curves", "reentrant", "local", "order_life", "pooler", "nginx"),
    *("faults_on_other_servers", "bench_locks", "command", "judgement", "search", "bench_strategies", "lifecycle"),
)
"""Names of slow test files, without `test_`. They run first, so that no worker runs one of them at the end.

Files that compute alternate with files that wait, which keeps the machine busy.
"""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow files first, and expect the tests in the `FAILS` of a class to fail.

    A test in `FAILS` that passes fails the run. `FAILS_WITH` names the expected exceptions where they are not an
    assertion, a timeout or the loss of a lease.
    """
    places = {f"test_{name}": place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(item.path.stem, len(SLOW)))
    for item in items:
        if getattr(item, "originalname", item.name) in getattr(getattr(item, "cls", None), "FAILS", ()):
            # Other exceptions still fail the run: a server that fails to start proves nothing about the lock.
            broken = getattr(item.cls, "FAILS_WITH", (AssertionError, pytest.fail.Exception, LeaseLost, LockTimeout))
            item.add_marker(pytest.mark.xfail(strict=True, raises=broken, reason="declared to fail"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Turn off garbage collection while pytest collects tests. It frees little, and takes a seventh of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude all objects that exist by now from garbage collection.

    Some tests collect garbage. With the whole suite's items and modules, each collection would take a second.
    """
    gc.freeze()
    gc.set_threshold(20_000)  # new objects before a collection; with the default of 700, tests collect all the time


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a failed fixture as a failure, even if the test is expected to fail: only the test proves the flaw."""
    report = yield
    if report.when != "call" and hasattr(report, "wasxfail"):
        report.outcome = "failed"
        del report.wasxfail
    return report
