"""A waiting room's line: the draw, the rate of admission, turns that end, and what survives a restart."""

from __future__ import annotations

import gc
import random
import tracemalloc
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings
from redis import Redis
from redis.exceptions import OutOfMemoryError

from servers.valkey import Valkey, temporary
from shop.api import throttles
from shop.models import Sale
from shop.sales import lifecycle
from shop.waiting import room
from shop.waiting.errors import RoomFull, RoomUnavailable
from tests.factories import OnSale, at_once, new_customer
from tests.shop.conftest import Buyer, Gone, assert_problem, order_body
from tests.shop.waiting_support import Stopped, enter_all, offer_at, places, set_rate, states, with_room

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

SEED = "a fixed secret, so that the draw of this test is the same each time" * 2
CUSTOMERS = range(1, 1001)
DECILES = 10
UNFAIR = 126.1
"""Chi-square with 81 degrees of freedom: a fair draw exceeds this once in a thousand times."""


def chi_square(drawn: list[int]) -> float:
    """Return the chi-square statistic of places against order of arrival. Its average is 81 if the draw is fair.

    Args:
        drawn: each customer's place, from 0, in order of arrival.
    """
    size = len(drawn) // DECILES
    cells = Counter((arrival // size, place // size) for arrival, place in enumerate(drawn))
    expected = size / DECILES
    return sum((cells[i, j] - expected) ** 2 / expected for i in range(DECILES) for j in range(DECILES))


def drawn_places() -> list[int]:
    """Let customers enter before the opening. Return their places, from 0, in order of arrival."""
    sale = with_room(coming=True)
    enter_all(offer_at(sale, -60), CUSTOMERS)
    found = places(offer_at(sale, 1), CUSTOMERS)
    assert sorted(place or 0 for place in found) == [*CUSTOMERS]
    return [(place or 0) - 1 for place in found]


@pytest.fixture
def seeded(settings: Any) -> None:
    settings.SECRET_KEY = SEED


def test_the_draw_does_not_depend_on_the_order_of_arrival(seeded: None) -> None:
    assert chi_square(drawn_places()) < UNFAIR


def test_a_line_in_order_of_arrival_is_recognised(seeded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the statistic detects a line in order of arrival, and even a weak dependence."""
    leaning = sorted(range(1000), key=lambda arrival: room.draw(1, arrival) + 0.3 * arrival / 1000)
    monkeypatch.setattr(room, "draw", lambda sale, customer: customer / 10_000)
    assert chi_square(drawn_places()) > UNFAIR
    assert chi_square([leaning.index(arrival) for arrival in range(1000)]) > UNFAIR


def test_each_sale_has_a_draw_of_its_own_that_the_secret_decides(settings: Any) -> None:
    first = [room.draw(1, customer) for customer in range(5)]
    assert all(0 <= score < 1 for score in first)
    assert first == [room.draw(1, customer) for customer in range(5)]
    assert first != [room.draw(2, customer) for customer in range(5)]
    settings.SECRET_KEY = SEED
    assert first != [room.draw(1, customer) for customer in range(5)]


def test_before_the_opening_nothing_of_the_draw_is_told() -> None:
    sale = with_room(coming=True)
    enter_all(offer_at(sale, -60), [1, 2, 3])
    standing = room.look(offer_at(sale, -60), 2)
    assert (standing.state, standing.entered) == ("draw", 3)
    assert (standing.place, standing.ahead, standing.estimate, standing.ticket) == (None, None, None, "")
    assert 60 <= standing.poll_after <= 60 + room.SPREAD
    assert room.look(offer_at(sale, -100 * 24 * 3600), 2).poll_after == room.LONGEST


def test_entering_again_gives_no_second_place_and_no_second_draw(redis: Redis) -> None:
    sale = with_room(coming=True)
    enter_all(offer_at(sale, -60), [1, 2, 3])
    (line, _, _) = room.keys(sale.sale)
    before = redis.zrange(line, 0, -1, withscores=True)
    enter_all(offer_at(sale, -30), [1] * 20)
    assert redis.zrange(line, 0, -1, withscores=True) == before
    redis.flushall()
    enter_all(offer_at(sale, -20), [3, 2, 1])
    assert redis.zrange(line, 0, -1, withscores=True) == before, "a loss before the opening changes no number"
    enter_all(offer_at(sale, 0.001), [1, 2, 3] * 5)
    assert redis.zrange(line, 0, -1, withscores=True) == before


def change_script(monkeypatch: pytest.MonkeyPatch, guard: str, instead: str) -> None:
    assert guard in room.SCRIPT
    monkeypatch.setattr(room, "SCRIPT", room.SCRIPT.replace(guard, instead))


def test_without_that_guard_a_reload_would_move_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the guard against entering twice, a reload moves a customer to the end."""
    new = "local new = enters{}\nif new then\n    local given"
    change_script(monkeypatch, new.format(" and not rank"), new.format(""))
    offer = offer_at(with_room(rate=1), 0.001)
    enter_all(offer, [1, 2, 1])
    assert places(offer, [1, 2]) == [2, 1]


def test_tabs_that_enter_at_the_same_time_get_one_place() -> None:
    offer = offer_at(with_room(), 0.001)
    found = at_once(*[partial(room.enter, offer, 7)] * 8)
    assert {standing.place for standing in found} == {1}
    assert room.enter(offer, 8).place == 2


def test_who_comes_later_queues_behind_the_draw_first_come_first_served() -> None:
    sale = with_room(coming=True)
    enter_all(offer_at(sale, -1), [1, 2, 3, 4])
    enter_all(offer_at(sale, 0.001), [9, 8, 7])
    assert places(offer_at(sale, 0.001), [9, 8, 7]) == [5, 6, 7]
    assert sorted(place or 0 for place in places(offer_at(sale, 0.001), [1, 2, 3, 4])) == [1, 2, 3, 4]


def test_a_place_ahead_and_estimate_are_those_of_the_pace() -> None:
    sale = with_room(rate=10, coming=True)
    enter_all(offer_at(sale, -1), range(1, 101))
    now = offer_at(sale, 2)  # 20 are admitted by now
    standings = sorted((room.look(now, customer) for customer in range(1, 101)), key=lambda one: one.place or 0)
    assert [one.state for one in standings] == ["admitted"] * 20 + ["waiting"] * 80
    assert [(one.place, one.ahead, one.estimate) for one in standings[20::39]] == [(21, 0, 1), (60, 39, 4), (99, 78, 8)]
    assert [one.poll_after for one in standings[20::39]] == [2, 4, 8]
    assert all(bool(one.ticket) is (one.state == "admitted") for one in standings)


def test_a_changed_rate_counts_from_the_moment_of_the_change() -> None:
    sale = with_room(rate=10, coming=True)
    everybody = range(1, 101)
    enter_all(offer_at(sale, -1), everybody)
    assert Counter(states(offer_at(sale, 2), everybody))["admitted"] == 20
    set_rate(sale, 1)
    assert Counter(states(offer_at(sale, 2), everybody))["admitted"] == 20
    assert Counter(states(offer_at(sale, 5), everybody))["admitted"] == 23
    set_rate(sale, 40)
    assert Counter(states(offer_at(sale, 5), everybody))["admitted"] == 23
    assert Counter(states(offer_at(sale, 6), everybody))["admitted"] == 63


def test_a_clock_that_is_behind_takes_no_admission_back() -> None:
    sale = with_room(rate=10, coming=True)
    enter_all(offer_at(sale, -1), range(1, 101))
    admitted = [one for one in range(1, 101) if room.look(offer_at(sale, 2), one).state == "admitted"]
    assert states(offer_at(sale, 1), admitted) == ["admitted"] * 20
    set_rate(sale, 20)
    room.look(offer_at(sale, 3), 1)
    assert Counter(states(offer_at(sale, 2.9), range(1, 101)))["admitted"] == 30


@pytest.mark.parametrize("guarded", [True, False])
def test_admissions_that_nobody_used_are_not_saved_up(monkeypatch: pytest.MonkeyPatch, *, guarded: bool) -> None:
    """A crowd enters a room after 50 quiet minutes. Negative control: without the limit, all are admitted."""
    if not guarded:
        change_script(monkeypatch, "if admitted() > given + rate then", "if false then")
    sale = with_room(rate=10)
    room.enter(offer_at(sale, 0), 1)
    crowd = range(2, 102)
    enter_all(offer_at(sale, 3000), crowd)
    assert Counter(states(offer_at(sale, 3000), crowd))["admitted"] == (10 if guarded else 100)


def test_a_turn_ends_and_entering_again_leads_to_the_end_of_the_line() -> None:
    sale = with_room(rate=1, coming=True)
    enter_all(offer_at(sale, -1), range(1, 5))
    begins = next(one for one in range(1, 5) if room.look(offer_at(sale, 1), one).place == 1)
    others = [one for one in range(1, 5) if one != begins]
    ends = 1 + room.TURN.total_seconds()
    for ask in (room.look, room.enter):  # A reload enters again, and does not prolong the turn.
        assert ask(offer_at(sale, ends - 0.001), begins).ticket
    over = offer_at(sale, ends)
    assert (room.look(over, begins).state, room.look(over, begins).ticket) == ("ended", "")
    before = places(over, others)
    again = room.enter(over, begins)
    assert again.place == 5
    assert places(over, others) == before, "no other place changes"


def test_a_turn_begins_when_its_customer_learns_of_it() -> None:
    sale = with_room(rate=1, coming=True)
    enter_all(offer_at(sale, -1), [1])
    late = offer_at(sale, 3000)
    standing = room.look(late, 1)
    assert standing.state == "admitted"
    assert abs(standing.ends_at - late.clock.now() - room.TURN) <= timedelta(milliseconds=1)


def test_a_postponed_sale_begins_again_with_its_places() -> None:
    sale = with_room(rate=1, coming=True)
    enter_all(offer_at(sale, -1), [1, 2])
    first = next(one for one in (1, 2) if room.look(offer_at(sale, 1), one).ticket)
    Sale.objects.filter(pk=sale.sale).update(opens_at=offer_at(sale, 1800).clock.now())
    assert states(offer_at(sale, -1), [1, 2]) == ["draw", "draw"]
    reopened = offer_at(sale, 1)
    assert sorted(places(reopened, [1, 2]), key=str) == [1, 2]
    assert room.look(reopened, first).state == "admitted"
    assert room.look(reopened, 3 - first).state == "waiting"


def test_a_look_gives_no_place_and_writes_nothing(redis: Redis) -> None:
    sale = with_room(rate=1, coming=True)
    enter_all(offer_at(sale, -1), [1, 2, 3])
    room.look(offer_at(sale, 0), 1)  # The first look after the opening records the opening.
    (last,) = (one for one in (1, 2, 3) if room.look(offer_at(sale, 0), one).place == 3)
    before = redis.info("persistence")["rdb_changes_since_last_save"]
    for second in (-1, 0, 1, 1.5):
        assert room.look(offer_at(sale, second), 99).state == "outside"
        assert room.look(offer_at(sale, second), last).state in ("draw", "waiting")
    assert redis.info("persistence")["rdb_changes_since_last_save"] == before


def test_the_keys_of_a_room_end_a_day_after_the_sale(redis: Redis) -> None:
    sale = with_room()
    offer = offer_at(sale, 1)
    enter_all(offer, [1, 2])
    ends = room.arguments(offer, 1, offer.opens_at, enters=True)[4]
    assert abs(ends - (offer.closes_at + timedelta(days=1)).timestamp() * 1000) < 2
    assert {redis.pexpiretime(key) for key in room.keys(sale.sale)} == {ends}


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A Valkey for this test, used by the shop."""
    with temporary() as server:
        caches = {**django_settings.CACHES, "default": {**django_settings.CACHES["default"], "LOCATION": server.url}}
        with override_settings(CACHES=caches):
            yield server


def test_places_survive_a_restart_of_valkey(own_valkey: Valkey) -> None:
    sale = with_room(rate=1, coming=True)
    enter_all(offer_at(sale, -1), range(1, 51))
    enter_all(offer_at(sale, 10), range(51, 61))
    before = [room.look(offer_at(sale, 10), one) for one in range(1, 61)]
    own_valkey.stop()
    with pytest.raises(RoomUnavailable):
        room.look(offer_at(sale, 10), 1)
    own_valkey.start()
    assert [room.look(offer_at(sale, 10), one) for one in range(1, 61)] == before


def sale_with_five_waiting() -> OnSale:
    sale = with_room(rate=1, coming=True)
    enter_all(offer_at(sale, -1), range(1, 6))
    room.look(offer_at(sale, 0), 1)  # The first look after the opening records the opening.
    return sale


def test_in_a_full_redis_turns_begin_and_end_in_their_order(full: Gone) -> None:
    """Customers with a place are admitted in order. They keep their turns when Redis has memory again."""
    sale = sale_with_five_waiting()
    with full():
        assert [states(offer_at(sale, second), range(1, 6)).count("admitted") for second in (0, 1, 3)] == [0, 1, 3]
        assert room.enter(offer_at(sale, 4), 1).place in range(1, 6), "entering again is no new place"
        drawn = places(offer_at(sale, 4), range(1, 6))
        ends = [room.look(offer_at(sale, 4), one).ends_at for one in range(1, 6)]
    assert sorted(place or 0 for place in drawn) == [1, 2, 3, 4, 5]
    assert places(offer_at(sale, 4), range(1, 6)) == drawn
    assert [room.look(offer_at(sale, 4), one).ends_at for one in range(1, 6)] == ends
    assert ends.count(None) == 1
    assert room.enter(offer_at(sale, 5), 6).place == 6


def test_without_that_flag_a_full_redis_admits_nobody(full: Gone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without `allow-oom` in the script, the room admits nobody until Redis has memory."""
    monkeypatch.setattr(room, "EVEN_IF_FULL", "")
    sale = sale_with_five_waiting()
    with full(), pytest.raises(OutOfMemoryError):
        states(offer_at(sale, 1), range(1, 6))


def test_a_real_limit_refuses_arrivals_and_loses_nobody(own_valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    """Customers enter until Valkey has no memory left. Those who were given a place keep it and are admitted."""
    sale = with_room(rate=1000, coming=True)
    before, given = offer_at(sale, -1), 0
    with Redis.from_url(own_valkey.url) as client:
        room.enter(before, 1)
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used + 100_000)
        with suppress(RoomFull):
            for customer in range(2, 20_000):
                room.enter(before, customer)
                given = customer
        for _ in range(3):
            with pytest.raises(RoomFull):
                room.enter(before, given + 1)
        assert room.enter(before, 1).state == "draw"
        assert 200 < given < 19_000
        everybody = range(1, given + 1)
        assert room.look(before, 1).entered == given
        after = offer_at(sale, 60)
        assert Counter(states(after, everybody)) == {"admitted": given}
        assert client.info("memory")["used_memory"] > used + 100_000
        client.config_set("maxmemory", 0)
        assert room.enter(after, given + 1).place == given + 1
    about = [record.getMessage() for record in caplog.records if room.ENTERING in record.getMessage()]
    assert ["fails" in about[0], "works again" in about[1], len(about)] == [True, True, 2], "one line for all of them"


def test_a_call_is_one_round_trip_and_reads_no_list_of_others(redis: Redis) -> None:
    """An arrival, and a look of a late customer: the commands take constant or logarithmic time."""
    sale = with_room(coming=True)
    enter_all(offer_at(sale, -1), [1])
    redis.config_resetstat()
    enter_all(offer_at(sale, -1), [2])
    enter_all(offer_at(sale, 1), [3])
    sent = executed(redis)
    assert sent.pop("evalsha") == 2
    assert set(sent) - {"unlink"} == {"zrank", "zadd", "zcard", "pexpireat", "hmget", "hset", "hincrby"}
    sale = all_in_the_draw()
    looks = states(offer_at(sale, AT), RETURNED)
    redis.config_resetstat()
    room.look(offer_at(sale, AT), RETURNED[looks.index("waiting")])
    sent = executed(redis)
    assert sent.pop("evalsha") == 1
    assert set(sent) <= {"zrank", "zcard", "hmget", "hget", "hlen", "hset", "pexpireat"}


def executed(redis: Redis) -> dict[str, int]:
    """Return how often Redis has executed each command since `config_resetstat`."""
    sent = {name.removeprefix("cmdstat_"): row["calls"] for name, row in redis.info("commandstats").items()}
    return {name: calls for name, calls in sent.items() if name not in ("config|resetstat", "info")}


def test_in_a_pause_nobody_is_admitted(redis: Redis) -> None:
    sale = with_room(rate=10)
    customers = [new_customer() for _ in range(30)]
    enter_all(offer_at(sale, -60), customers)
    assert states(offer_at(sale, 1), customers).count("admitted") == 10
    for seconds in (1, 60):
        assert states(offer_at(sale, seconds, paused=True), customers).count("admitted") == 10
    assert [states(offer_at(sale, seconds), customers).count("admitted") for seconds in (61, 62)] == [10, 20]


def test_who_presses_buy_before_a_pause_is_told_of_it_when_the_ticket_has_ended(buyer: Buyer) -> None:
    sale = with_room()
    lifecycle.pause(sale.sale)
    answer = buyer.order(order_body(sale, a=1), headers={"Waiting-Ticket": "ended"})
    assert_problem(answer, 409, "sale-paused")


def test_looks_are_limited_for_each_customer(buyer: Buyer, other_buyer: Buyer, in_one_second: None) -> None:
    address = f"/api/sales/{with_room().sale}/waiting/"
    assert [buyer.get(address).status_code for _ in range(throttles.LOOKS)] == [200] * throttles.LOOKS
    refused = assert_problem(buyer.get(address), 429, "too-fast")
    assert f"places in waiting rooms {throttles.LOOKS} times in a second" in refused["detail"]
    assert other_buyer.get(address).status_code == 200


# Customers who come back at once

RETURNED = range(1, 301)
AT = 300.0
"""Seconds after the opening at which the customers of the draw look for the first time; at rate 1 all are admitted."""


def turns_begun(
    sale: OnSale, first_looks: dict[int, float], until: float
) -> tuple[dict[int, float], dict[int, list[tuple[float, room.Standing]]]]:
    """Let customers poll when the room says. Return when each turn began, and all that each was told before."""
    events = [(moment, customer) for customer, moment in first_looks.items()]
    heapify(events)
    begun: dict[int, float] = {}
    told: dict[int, list[tuple[float, room.Standing]]] = defaultdict(list)
    template = offer_at(sale, 0)
    while events and events[0][0] <= until:
        moment, customer = heappop(events)
        now = replace(template, clock=Stopped(template.opens_at + timedelta(seconds=moment), 0))
        standing = room.look(now, customer)
        if standing.state == "admitted":
            begun[customer] = moment
        else:
            told[customer].append((moment, standing))
            heappush(events, (moment + standing.poll_after, customer))
    return begun, told


def most_in(seconds: float, moments: list[float]) -> int:
    """Return the largest number of moments in any period of `seconds`."""
    moments = sorted(moments)
    return max(bisect_right(moments, moment + seconds) - index for index, moment in enumerate(moments))


def all_in_the_draw(rate: int = 1, customers: Sequence[int] = RETURNED) -> OnSale:
    sale = with_room(rate=rate, coming=True)
    enter_all(offer_at(sale, -1), customers)
    room.look(offer_at(sale, 0), customers[0])  # The first look after the opening records the opening.
    return sale


@pytest.mark.parametrize("guarded", [True, False])
def test_customers_who_come_back_at_once_begin_at_the_rate(monkeypatch: pytest.MonkeyPatch, *, guarded: bool) -> None:
    """Negative control: without the tokens, all who were admitted during an outage begin at once after it."""
    if not guarded:
        change_script(monkeypatch, "if tokens > 0.999 then", "if true then")
    sale = all_in_the_draw()
    assert states(offer_at(sale, AT), RETURNED).count("admitted") == (room.BURST if guarded else AT)


def test_a_crowd_that_comes_back_is_told_an_honest_estimate_and_keeps_its_places() -> None:
    """After an outage of five minutes, 100 come back within two seconds; the others stay away, and take no token."""
    sale = all_in_the_draw()
    line = places(offer_at(sale, 0), RETURNED)
    back = list(RETURNED)[::3]
    begun, told = turns_begun(sale, {one: AT + 2 * index / len(back) for index, one in enumerate(back)}, AT + 400)
    moments = list(begun.values())
    assert sorted(begun) == sorted(back), "nobody starves"
    for seconds in (0, 1, 10, 60, 150):
        assert most_in(seconds, moments) <= seconds + room.BURST + 1
    assert max(moments) - AT <= len(back) * 1.25, "nearly no token is lost"
    assert all(standing.place == line[one - 1] for one in back for _, standing in told[one])
    assert {standing.state for one in back for _, standing in told[one]} == {"waiting"}
    first = [told[one][0] for one in back if told[one]]
    estimated = sum(standing.estimate or 0 for _, standing in first) / len(first)
    waited = sum(begun[one] - told[one][0][0] for one in back if told[one]) / len(first)
    assert 0.67 * waited <= estimated <= 1.5 * waited
    assert all(room.FASTEST <= standing.poll_after <= 1.5 * room.BURST + 1 for _, standing in first)


def test_the_line_waits_for_those_who_come_back_and_is_told_so() -> None:
    sale = all_in_the_draw()
    line = places(offer_at(sale, 0), RETURNED)
    (last,) = (one for one in RETURNED if line[one - 1] == len(RETURNED))
    others = [one for one in RETURNED if one != last][::6]
    assert room.look(offer_at(sale, 200), last).estimate == 100
    come_back = [one for one in others if (line[one - 1] or 0) <= 200]
    refused = states(offer_at(sale, 200), come_back).count("waiting")
    assert refused == len(come_back) - room.BURST > 0
    standing = room.look(offer_at(sale, 200), last)
    assert (standing.ahead, standing.estimate) == (99 + refused, 100 + refused)
    assert room.look(offer_at(sale, 200 + room.BURST), last).place == len(RETURNED)
    assert room.look(offer_at(sale, 200 + room.BURST), last).estimate >= 100, (
        "nobody was admitted while those before them waited"
    )


def delayed(burst: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Open a sale with a large draw whose customers all poll. Return how many wait although their place is admitted."""
    random.seed(burst)
    monkeypatch.setattr(room, "BURST", burst)
    monkeypatch.setattr(room, "LOOKS_PER_SECOND", 5)  # spreads the first looks over 30 s, as in a large room
    customers, rate = range(1, 151), 4
    sale = with_room(rate=rate, coming=True)
    enter_all(offer_at(sale, -1), customers)
    looks = {one: room.look(offer_at(sale, -1), one).poll_after - 1.0 + one / 1000 for one in customers}
    begun, told = turns_begun(sale, looks, 120)
    assert len(begun) == len(customers)
    return sum(any((each.place or 0) <= rate * moment for moment, each in told[one]) for one in customers)


def test_in_a_usual_sale_nobody_waits_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: if tokens were kept for one second only, the spread looks at the opening would be delayed."""
    assert delayed(room.BURST, monkeypatch) == 0
    assert delayed(1, monkeypatch) > 0


def test_turns_of_customers_who_come_back_do_not_begin_in_a_pause() -> None:
    sale = all_in_the_draw()
    paused = offer_at(sale, AT, paused=True)
    assert states(paused, RETURNED).count("admitted") == 0
    later = offer_at(sale, AT + 600, paused=True)
    asleep = room.look(later, 1)
    assert (asleep.state, asleep.poll_after >= room.BURST // 2) == ("waiting", True)
    assert states(offer_at(sale, AT + 601), RETURNED).count("admitted") <= room.BURST


def test_another_rate_holds_for_customers_who_come_back() -> None:
    sale = all_in_the_draw()
    assert states(offer_at(sale, AT), RETURNED).count("admitted") == room.BURST
    set_rate(sale, 20)
    assert states(offer_at(sale, AT), RETURNED).count("admitted") == room.BURST
    assert states(offer_at(sale, AT + 2), RETURNED).count("admitted") == room.BURST + 40
    set_rate(sale, 1)
    assert states(offer_at(sale, AT + 100), RETURNED).count("admitted") <= room.BURST + 40 + room.BURST


def test_a_room_of_an_older_version_goes_on(redis: Redis) -> None:
    """A room that opened before the update has no tokens stored. It gets those since its opening, up to the burst."""
    sale = all_in_the_draw()
    redis.hdel(room.keys(sale.sale)[1], "tokens", "filled", "late", "late_at")
    assert states(offer_at(sale, AT), RETURNED).count("admitted") == room.BURST


# Memory of a web process

ARRIVALS = 300
KEPT_PER_ARRIVAL = 30
"""Maximum growth in bytes per arrival. A process that keeps an object for each arrival exceeds it: an int takes 60."""


def test_a_web_process_keeps_nothing_for_each_waiter() -> None:
    """Memory does not grow with the arrivals. Negative control: a process that keeps an object for each."""
    offer = offer_at(with_room(rate=1), 1)
    arriving = iter(range(1, 101 + 2 * ARRIVALS))
    waiters: list[object] = []
    enter_all(offer, [*islice(arriving, 100)])  # Load what is loaded only once.

    def grown(keep: Callable[[object], None]) -> float:
        """Return by how many bytes per arrival the memory grows."""
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for customer in islice(arriving, ARRIVALS):
            keep(room.enter(offer, customer))
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / ARRIVALS

    tracemalloc.start()
    try:
        assert grown(lambda standing: None) <= KEPT_PER_ARRIVAL
        assert grown(waiters.append) > KEPT_PER_ARRIVAL
    finally:
        tracemalloc.stop()
    assert room.look(offer, 1).entered == 100 + 2 * ARRIVALS
