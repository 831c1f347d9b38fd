"""The overview: figures of open sales, state of the servers, and alerts that need an operator."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis import Redis

from inventory.audit import Figures
from inventory.counters.whole import counter_key
from inventory.models import StockItem
from locking.registry import HeldLock
from shop import conservation, heartbeat, reconciliations
from shop.models import Order, Sale
from shop.orders.expiry import expire_unpaid
from shop.orders.queued import save_queued
from shop.overview import alerts as alerting
from shop.overview import cards, document, rooms, selling
from shop.overview.alerts import FAILED, LONG_HOLD, OLD_QUEUE, SLOW, Alert, alerts
from shop.overview.health import Health
from shop.overview.requests import Requests
from shop.reconcile import reconcile_and_audit
from shop.reconciliations import Reconciliation
from shop.sales import lifecycle
from shop.sales.preheat import preheat_sale
from shop.waiting import room
from tests.docs.pages import PAGES, leads_to, moved, plain
from tests.factories import new_customer, on_sale
from tests.shop.conftest import Gone, buy, make_due, raising
from tests.shop.test_admin import text
from tests.shop.waiting_support import enter_all, offer_at, states, with_room
from tests.shop.web_server import CHECKOUT
from tests.test_observe import rules
from tests.waiting import WAIT_TIMEOUT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget cached figures, so that each test sees its own."""
    monkeypatch.setattr(document, "shared", document.SharedFigures())


@pytest.fixture
def celery(redis: Redis) -> None:
    """A heartbeat of a worker and of beat, as if both were alive."""
    heartbeat.sign(heartbeat.WORKER, "here")
    heartbeat.sign(heartbeat.BEAT, "here")


def asking() -> list[Alert]:
    figures = document.read()
    return alerts(figures.sales, figures.health, figures.report.broken)


@pytest.mark.parametrize("strategy", ["guarded-update", "unit-rows", "segmented-lock", "lua-queue"])
def test_the_curve_ends_in_what_the_audit_counts(strategy: str) -> None:
    offer = on_sale({"a": 20, "b": 5}, strategy=strategy)
    due = buy(offer, a=2)
    for _ in range(3):
        buy(offer, a=1, b=1)
    save_queued()
    make_due(due.order.pk)
    assert expire_unpaid() == 1
    (figures,) = selling.open_sales()
    audited = conservation.figures()
    assert figures.sold == figures.curve[-1] == sum(row.sold for row in audited) == 6
    assert figures.left == sum(row.on_hand for row in audited) == 19
    assert list(figures.curve) == sorted(figures.curve)
    assert (sum(figures.recent), figures.rate) == (4, 0.4)


def test_the_curve_rises_when_the_orders_were_placed() -> None:
    offer = on_sale({"a": 10}, opens=timedelta(minutes=-60))
    early, _late = buy(offer, a=3), buy(offer, a=1)
    Order.objects.filter(pk=early.order.pk).update(created_at=timezone.now() - timedelta(minutes=30))
    (figures,) = selling.open_sales()
    assert [figures.curve[at] for at in (0, 28, 31, 58, 59)] == [0, 0, 3, 3, 4]
    chart = json.loads(figures.curves)
    assert [chart["sold"][at] for at in (0, 29, 32, 60)] == [0, 0, 3, 4]
    assert [chart["left"][at] for at in (0, 29, 32, 60)] == [10, 10, 7, 6]
    assert 3600 <= chart["seconds"] < 3600 + WAIT_TIMEOUT


def test_only_open_sales_are_shown_and_paused_ones_are_open() -> None:
    on_sale({"a": 1}, opens=timedelta(hours=1), closes=timedelta(hours=2))
    on_sale({"b": 1}, opens=timedelta(hours=-2), closes=timedelta(hours=-1))
    assert selling.open_sales() == []
    offer = on_sale({"c": 1})
    lifecycle.pause(offer.sale)
    assert [each.sale.pk for each in selling.open_sales()] == [offer.sale]


@pytest.mark.usefixtures("celery")
def test_a_sale_that_was_not_loaded_in_time_asks_for_an_operator() -> None:
    """A sale that is still not loaded 15 s after its loading time needs an operator. Beat tries every 5 s."""
    soon, later = timedelta(seconds=40), timedelta(seconds=59)
    offer = on_sale({"a": 3}, opens=later, preheat=False)
    assert asking() == []
    Sale.objects.filter(pk=offer.sale).update(opens_at=timezone.now() + soon)
    (alert,) = asking()
    assert (alert.section, "opens soon" in alert.text) == ("before-a-sale.md#before-a-sale", True)
    preheat_sale(offer.sale)
    assert asking() == []


def test_requests_ask_for_an_operator_at_the_threshold_of_prometheus() -> None:
    assert red(requests=Requests({}, 0.05, None, None)) == []
    (failed,) = red(requests=Requests({}, 0.06, None, None))
    assert failed.section == "incidents.md#when-something-is-wrong"
    (rule,) = [each for each in rules() if each["alert"] == "OrdersSlow"]
    assert rule["expr"].endswith(f" > {SLOW:g}")
    (alert,) = red(requests=Requests({}, 0.0, 0.2, SLOW + 0.1))
    assert (plain(alert.advice), alert.section) == (plain(rule["annotations"]["todo"]), rule["annotations"]["where"])
    assert red(requests=Requests({}, 0.0, 0.2, SLOW)) == []


def test_without_a_sale_or_an_unpaid_order_nobody_has_to_start_celery() -> None:
    assert asking() == []
    on_sale({"a": 3}, opens=timedelta(hours=2), closes=timedelta(hours=3))
    assert asking() == []


LOCK = HeldLock("stock:a", "host 1 thread", 1, LONG_HOLD + 1, 3.0, 1)
BROKEN = Figures("a", 3, 3, 1, 0)
RECONCILED = Reconciliation(5.0, (), 1, 2)


def reported(code: str) -> set[int]:
    """Return the lines of the code that report an alert."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return {call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Alert"}


def advice_elsewhere(pages: Mapping[str, str] = PAGES) -> set[str]:
    """Return the texts of the alerts whose advice is not a sentence of the section that they name."""
    found = [alert for wrong in RED.values() for alert in red(**wrong)]
    return {alert.text for alert in found if plain(alert.advice) not in plain(leads_to(alert.section, pages))}


def test_the_section_of_each_alert_has_its_advice() -> None:
    """`test_the_table_reaches_every_alert` checks that `RED` has every alert."""
    assert advice_elsewhere() == set()
    assert all(len(alert.advice.split()) >= 3 for wrong in RED.values() for alert in red(**wrong))


@pytest.mark.parametrize(
    ("words", "others", "found"),
    [("Exactly one may run.", "Run one.", "Beat is"), ("more workers.", "another.", "5 orders are queued")],
)
def test_advice_that_the_section_does_not_give_is_found(words: str, others: str, found: str) -> None:
    """Negative control: other words, and the same words in another section."""
    (text,) = advice_elsewhere(moved(words, others))
    assert text.startswith(found)


QUIET = Health(expiring=0, late=0, needed=True, postgres_ms=1.0, workers=1, beats=1)
RED: dict[str, dict[str, Any]] = {
    "The stock of a is broken.": {"broken": [BROKEN]},
    "found a broken.": {"reconciled": [replace(RECONCILED, broken=("a",))]},
    "The last two reconciliations": {"reconciled": [RECONCILED, RECONCILED]},
    "Redis does not answer:": {"redis_error": "Connection refused."},
    "Redis refuses writes: why.": {"redis_refusal": "why.", "heartbeats": False, "workers": 0, "beats": 0},
    "No worker is alive:": {"workers": 0},
    "orders are queued, the oldest": {"queue": 5, "queue_age": OLD_QUEUE + 1},
    "Beat is not alive:": {"beats": 0},
    "unpaid orders should have expired": {"late": 2},
    "Queued orders could not be saved": {"dead_letters": [(timezone.now(), "id", "order", "reason")]},
    "ended with a server error": {"requests": Requests({}, FAILED + 0.01, None, None)},
    "One order request in a hundred takes longer than 5.1 s": {"requests": Requests({}, 0.0, 0.2, SLOW + 0.1)},
    "“Soon” opens soon": {"unloaded": ["Soon"]},
    "has been paused since": {"paused_at": timezone.now()},
    "is open, and its stock is not loaded": {"preheated_at": None},
    "Lock stock:a has been held": {"locks": [LOCK]},
}
"""What makes each alert red, by a part of its text."""


def red(**wrong: Any) -> list[Alert]:
    """Return the alerts of a quiet shop with an open sale, after the changes in `wrong`."""
    of_sale = {name: wrong.pop(name) for name in ("paused_at", "preheated_at") if name in wrong}
    now = timezone.now()
    sale = Sale(name="Now", opens_at=now, closes_at=now, **{"preheated_at": now, **of_sale})
    figures = selling.OpenSaleFigures(sale, now, 0, 1, [0, 0], [0])
    broken, requests = wrong.pop("broken", []), wrong.pop("requests", None)
    return alerts([figures], replace(QUIET, **wrong), broken, requests)


@pytest.mark.parametrize("said", RED)
def test_each_alert_is_red_alone(said: str) -> None:
    assert red() == []
    (alert,) = red(**RED[said])
    assert said in alert.text


def test_the_table_reaches_every_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[int] = set()

    def counted(*args: Any) -> Alert:
        reached.add(sys._getframe(1).f_lineno)
        return Alert(*args)

    monkeypatch.setattr(alerting, "Alert", counted)
    for wrong in RED.values():
        red(**wrong)
    assert reached == reported(inspect.getsource(alerting))


def silence(kind: str) -> Callable[[Any], None]:
    return lambda redis: redis.zrem(heartbeat.KEY, f"{kind} here")


def a_dead_letter(redis: Redis) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shop.orders.queued.save_from_queue", raising(ValueError("no such thing")))
        save_queued()


def a_late_order(redis: Redis) -> None:
    Order.objects.update(payable_from=timezone.now() - timedelta(days=1))


def an_old_entry(redis: Redis) -> None:
    _, fields = redis.xrange("{stock}:queue", count=1)[0]  # type: ignore[index]
    redis.xtrim("{stock}:queue", maxlen=0)
    seconds, _ = redis.time()  # type: ignore[misc]
    redis.delete("{stock}:queue")
    redis.xadd("{stock}:queue", fields, id=f"{(seconds - 60) * 1000}-0")


@pytest.mark.usefixtures("celery")
@pytest.mark.parametrize(
    ("wrong", "section"),
    [
        (silence("worker"), "deployment.md#start"),
        (silence("beat"), "deployment.md#start"),
        (lambda redis: StockItem.objects.update(on_hand=0), "incidents.md#the-verdict-is-broken"),
        (lambda redis: lifecycle.pause(Sale.objects.get().pk), "during-a-sale.md#pause-a-sale"),
        (lambda redis: Sale.objects.update(preheated_at=None), "before-a-sale.md#before-a-sale"),
        (a_dead_letter, "log.md#what-the-log-says"),
        (an_old_entry, "incidents.md#the-queue-grows"),
        (a_late_order, "log.md#what-the-log-says"),
    ],
)
def test_what_is_wrong_asks_for_an_operator(redis: Redis, wrong: Callable[[Any], object], section: str) -> None:
    buy(on_sale({"a": 3}, strategy="lua-queue"), a=1)
    if wrong is a_late_order:
        save_queued()
    assert asking() == [], "it is quiet when all is well"
    wrong(redis)
    assert [each.section for each in asking()] == [section]


@pytest.mark.usefixtures("celery")
def test_drift_asks_for_an_operator_when_two_reconciliations_have_repaired_it(
    redis: Redis, staff: Callable[..., Client]
) -> None:
    """Two repairs in a row raise an alert. Drift alone does not, because every burst causes some for a moment."""
    on_sale({"a": 10}, strategy="lua")

    def reconcile(*, wrong_by: int) -> list[str]:
        if wrong_by:
            redis.decrby(counter_key("a"), wrong_by)
        assert [alert.section for alert in asking()] == (
            [] if repairs[-2:] != [1, 1] else ["incidents.md#redis-differs-stays"]
        )
        repairs.append(len(reconcile_and_audit().repairs))
        return [alert.section for alert in asking()]

    repairs: list[int] = []
    assert reconcile(wrong_by=0) == []
    assert reconcile(wrong_by=2) == []
    assert reconcile(wrong_by=3) == ["incidents.md#redis-differs-stays"]
    shown = parts(staff("view_stockitem"))["figures"]
    assert re.search(r"Reconciled \d+ s ago 1 repair, 3 units", shown)
    assert reconcile(wrong_by=0) == []
    assert repairs == [0, 1, 1, 0]
    assert redis.llen(reconciliations.KEY) == 2


@pytest.mark.usefixtures("celery")
def test_a_stock_that_the_last_reconciliation_has_found_broken_asks_for_an_operator() -> None:
    on_sale({"a": 10})
    StockItem.objects.update(received=11)
    reconcile_and_audit()
    assert [alert.section for alert in asking()] == ["incidents.md#the-verdict-is-broken"], "once, not twice"
    StockItem.objects.update(received=10)
    (alert,) = asking()
    assert "found a broken" in alert.text
    reconcile_and_audit()
    assert asking() == []


@pytest.mark.usefixtures("celery")
def test_without_redis_one_alert_says_so(redis_gone: Gone) -> None:
    on_sale({"a": 3}, strategy="lua")
    with redis_gone():
        assert [each.section for each in asking()] == ["incidents.md#redis-is-away"]


@contextmanager
def a_replica(redis: Redis) -> Iterator[None]:
    redis.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        redis.replicaof("no", "one")


@pytest.mark.parametrize(("kind", "reason"), [("full", "maxmemory"), ("replica", "read only replica")])
@pytest.mark.usefixtures("celery")
def test_a_redis_that_refuses_writes_asks_for_an_operator_and_celery_is_unknown(
    redis: Redis, staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, full: Gone, kind: str, reason: str
) -> None:
    """Redis refuses heartbeats, too. So no alert may call worker or beat dead until they can write heartbeats again."""
    monkeypatch.setattr(document, "LEAST", 0.0)  # no cache
    monkeypatch.setattr(document, "SHARE", 0.0)
    buy(on_sale({"a": 3}), a=1)
    operator = staff("view_order")
    redis.delete(heartbeat.KEY)  # As if the last heartbeats were too old.
    with full() if kind == "full" else a_replica(redis):
        shown = parts(operator)
        said = f"^Redis refuses writes: .*{reason}.* docs/incidents.md#redis-refuses-writes$"
        assert re.search(said, shown["alerts"])
        assert "alive" not in shown["alerts"]
        assert "Workers unknown Beat unknown" in shown["figures"]
        assert "refuses writes" in shown["figures"]
    assert parts(operator)["alerts"] == "", "the processes have some seconds to sign"
    document.shared = document.SharedFigures()
    assert "No worker is alive" in parts(operator)["alerts"], "negative control: a process that knows of no refusal"


@pytest.mark.parametrize(
    ("age", "waiters", "asks"), [(31.0, 1, True), (31.0, 0, False), (29.0, 1, False), (None, 1, False)]
)
def test_a_lock_that_is_held_for_long_while_others_wait_asks_for_an_operator(
    age: float | None, waiters: int, asks: bool
) -> None:
    found = red(locks=[replace(LOCK, age=age, waiters=waiters)])
    assert [each.section for each in found] == ["incidents.md#a-lock-that-nobody-releases"] * asks


def parts(client: Client) -> dict[str, str]:
    response = client.get("/admin/live/")
    assert response.status_code == 200
    assert "no-store" in response.headers["Cache-Control"]
    return {name: text(html) for name, html in response.json()["parts"].items()}


def test_the_document_has_what_the_user_may_see(staff: Callable[..., Client]) -> None:
    offer = on_sale({"a": 3})
    buy(offer, a=1)
    everything = parts(staff("view_sale", "view_order", "view_stockitem"))
    assert set(everything) == {"alerts", "sales", "figures", "verdict", "cards", "letters"}
    assert "Sold 1 Left 2 Orders/s 0.1" in everything["sales"]
    assert "No worker is alive" in everything["alerts"]
    assert "Conserved" in everything["verdict"]
    only_sales = parts(staff("change_sale"))
    assert set(only_sales) == {"alerts", "sales", "cards"}
    assert only_sales["alerts"] == ""
    assert "Pending" not in only_sales["cards"]
    assert set(parts(staff("view_refund"))) == {"alerts", "cards"}
    assert "Locks" not in parts(staff("view_order"))["figures"]
    assert staff().get("/admin/live/").status_code == 403
    assert Client().get("/admin/live/").status_code == 302


def test_each_sale_has_its_own_refusals(staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    sold_out, other = on_sale({"a": 1}), on_sale({"b": 1})
    refused = {sold_out.sale: {"sold-out": 2.5, "over-limit": 0.2}}
    monkeypatch.setattr(document.shared, "_watch", lambda: Requests({}, 0.0, None, None, refused))
    own = "Left 1 Orders/s 0.0 Refused/s: sold-out 2.5 Refused/s: over-limit 0.2"
    shown = parts(staff("view_sale", "view_order"))["sales"]
    assert shown.count(own) == 1
    assert shown.count("Refused") == 2, f"none of sale {other.sale}"
    assert "Refused" not in parts(staff("view_sale"))["sales"], "who may not see orders sees no refusals either"


def test_a_verdict_that_takes_too_long_is_missing_and_not_green(
    staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit reads all orders, and Postgres ends a statement of the web server after 10 s."""
    monkeypatch.setattr(conservation, "FIGURES", "SET statement_timeout = 1; SELECT pg_sleep(60)")
    shown = parts(staff("view_sale", "view_stockitem"))
    assert shown["verdict"].startswith("Not audited : Postgres did not add up the orders. canceling statement due to")
    assert "Conserved" not in shown["verdict"]
    assert set(shown) == {"alerts", "sales", "figures", "verdict", "cards"}


def test_a_waiting_room_shows_who_waits_and_who_is_admitted() -> None:
    sale, customers = with_room(rate=2), [new_customer() for _ in range(5)]
    enter_all(offer_at(sale, -10.0), customers)

    def counted(after_opening: float, **changes: Any) -> tuple[bool, int, int]:
        (figures,) = rooms.count([offer_at(sale, after_opening, **changes)])
        assert figures.waiting + figures.admitted == figures.entered == 5
        return figures.is_open, figures.waiting, figures.admitted

    assert counted(-5.0) == (False, 5, 0)
    admitted = {0.0: 0, 1.0: 2, 2.0: 4, 60.0: 5}
    assert [counted(seconds) for seconds in admitted] == [(True, 5 - count, count) for count in admitted.values()]
    states_then = states(offer_at(sale, 1.0), customers)
    assert sorted(states_then) == ["admitted"] * 2 + ["waiting"] * 3, "the customers are told the same"
    assert rooms.count([offer_at(sale, 1.0)])[0].entered == 5, "looking has given nobody a place"


def test_a_room_whose_rate_changes_while_redis_is_full_is_shown(
    full: Gone, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The first look after the change records the new rate. Negative control: without `allow-oom`, no room is shown."""
    sale = with_room(rate=2)
    rooms.count([offer_at(sale, 0.0)])  # The first look after the opening records the opening.
    for flag, shown in (("", 0), (room.EVEN_IF_FULL, 1)):
        with subtests.test(flag=flag), monkeypatch.context() as patch, full():
            patch.setattr(room, "EVEN_IF_FULL", flag)
            assert len(rooms.count([offer_at(sale, 1.0, admitted_per_second=4)])) == shown


def test_the_overview_shows_the_rooms_of_open_and_coming_sales(staff: Callable[..., Client], redis_gone: Gone) -> None:
    coming = with_room(coming=True)
    enter_all(offer_at(coming, -10.0), [new_customer(), new_customer()])
    operator = staff("view_sale")
    shown = parts(operator)["sales"]
    assert "Waiting room of Sale by guarded-update In the draw 2 opens at" in shown
    lifecycle.pause(coming.sale)
    Sale.objects.update(opens_at=timezone.now() - timedelta(minutes=1))
    document.shared = document.SharedFigures()
    shown = parts(operator)["sales"]
    assert "Waiting 2 Admitted 0 Nobody is admitted during the pause." in shown
    with redis_gone():
        assert rooms.read() == []
    Sale.objects.update(waiting_room=False)
    document.shared = document.SharedFigures()
    assert "Waiting" not in parts(operator)["sales"]


def test_the_first_page_shows_the_same_without_a_script(admin_client: Client) -> None:
    buy(on_sale({"a": 3}), a=1)
    page = admin_client.get("/admin/").text
    assert "Sold 1 Left 2 Orders/s 0.1" in text(page)
    assert re.search(r'<canvas [^>]*data-chart="{&quot;sold&quot;: \[0, ', page)
    overview = page.partition('id="overview"')[2].partition('data-part="letters"')[0]
    assert not re.search(r"<script(?![^>]*src=)[^>]*>", overview)


def test_operators_share_the_figures_of_a_second(staff: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators share figures for a second. Negative control: without the cache, each request reads the tables."""
    on_sale({"a": 3})
    clients = [staff("view_sale") for _ in range(3)]
    clients[0].get("/admin/live/")

    def reading() -> int:
        with CaptureQueriesContext(connection) as queries:
            for client in clients:
                client.get("/admin/live/")
        return sum("shop_sale" in query["sql"] for query in queries)

    monkeypatch.setattr("shop.overview.document.LEAST", 60.0)
    document.shared = document.SharedFigures()
    clients[0].get("/admin/live/")
    assert reading() == 0
    document.shared = document.read  # type: ignore[assignment]
    assert reading() >= 3


def test_an_open_page_does_not_count_all_orders_each_second(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open page gets new cards every 5 s. Negative control: without the limit, each poll reads them.

    Opening the page reads the cards at once. Otherwise an operator could send a refund, and still see it as due.
    """

    def counted(path: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            for _ in range(2):
                assert admin_client.get(path).status_code == 200
        return sum(query["sql"].startswith('SELECT "shop_order"."state"') for query in queries)

    monkeypatch.setattr(document, "LEAST", 0.0)
    monkeypatch.setattr(document, "SHARE", 0.0)
    assert counted("/admin/live/") == 1
    assert counted("/admin/") == 2
    monkeypatch.setattr(cards, "LEAST", 0.0)
    document.shared = document.SharedFigures()
    assert counted("/admin/live/") == 2


SCRIPT = (CHECKOUT / "shop/static/shop/overview.js").read_text()


def test_an_open_page_is_two_seconds_behind_at_most() -> None:
    """Worst case: a figure changes just after it was read, and the page asks just before it is read again."""
    (pause,) = re.findall(r"^const PAUSE = (\d+);", SCRIPT, re.MULTILINE)
    assert document.LEAST + int(pause) / 1000 <= 1.5, "half a second remains for two answers"
