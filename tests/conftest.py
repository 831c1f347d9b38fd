"""Real servers for the whole run, and an empty Redis for each test."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test import TransactionTestCase
from django_redis import get_redis_connection
from redis import Redis

from inventory import sold_out
from locking import LeaseLost, LockTimeout
from servers import Servers
from shop.sales import offers

# What several files of tests share says as much when it fails as they do themselves.
pytest.register_assert_rewrite(*[f"tests.{room}" for room in ("faults", "inventory", "lab", "loadtest", "locking")])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="rounds of each fault and strategy in tests/faults (1)")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Nothing is left out silently."""
    return ["the slow tests are left out; they are: make test-slow"] if config.option.markexpr == "not slow" else []


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers(settings.RUN_FOLDER) as running:
        yield running


@pytest.fixture(scope="session")
def django_db_modify_db_settings(servers: Servers) -> None:
    """The database is there before Django asks for it."""


KEPT = {"django_migrations", "django_content_type", "auth_permission"}
"""Tables with what Django itself writes after a migration, and after each of its own flushes anew."""


def empty(case: TransactionTestCase) -> None:
    """Empty the tables after a test that has committed.

    Django's own way is TRUNCATE, which makes every table's files anew, and content types and permissions after it.
    DELETE costs a few rows only. Like TRUNCATE it waits for whoever is still writing.
    """
    tables = sorted(set(connection.introspection.django_table_names(only_existing=True)) - KEPT)
    deletes = "; ".join(f"DELETE FROM {connection.ops.quote_name(table)}" for table in tables)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # all go, so no foreign key is asked
        cursor.execute(f"LOCK TABLE {', '.join(map(connection.ops.quote_name, tables))} IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute(deletes)


TransactionTestCase._fixture_teardown = empty  # type: ignore[method-assign]


@pytest.fixture
def redis(servers: Servers) -> Redis:
    """The shop's Redis, emptied."""
    client = get_redis_connection("default")
    client.flushall()
    offers.cache.clear()
    sold_out.forget()
    return client


SLOW = (
    "test_faults",
    "test_postgres",
    "test_rush",
    "test_etcd",
    "test_ladder_command",
    "test_zookeeper",
    "test_schedules_on_servers",
    "test_controls",
    "test_schedules_on_postgres",
    "test_redlock",
    "test_rungs_under_load",
    "test_browser",
    "test_faults_on_other_servers",
    "test_bench_locks",
    "test_command",
    "test_judgement",
    "test_rush_on_other_servers",
    "test_search",
    "test_bench_strategies",
    "test_lifecycle",
)
"""The files that take longest begin, so that no worker is left alone with one of them at the end.

Those that compute and those that wait take turns, so that the machine is not idle later.
"""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow files. What a class names in `FAILS` it must fail, or the run fails.

    `FAILS_WITH` says how, where it is not an assertion, a timeout or the loss of a lease.
    """
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))
    for item in items:
        if getattr(item, "originalname", item.name) in getattr(getattr(item, "cls", None), "FAILS", ()):
            # By failing, that is: a server that does not start, or does not answer, is no proof of anything.
            broken = getattr(item.cls, "FAILS_WITH", (AssertionError, pytest.fail.Exception, LeaseLost, LockTimeout))
            item.add_marker(pytest.mark.xfail(strict=True, raises=broken, reason="declared to fail"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Who is declared to fail must fail in the test itself: a fixture that fails proves nothing of what is tested."""
    report = yield
    if report.when != "call" and hasattr(report, "wasxfail"):
        report.outcome = "failed"
        del report.wasxfail
    return report
