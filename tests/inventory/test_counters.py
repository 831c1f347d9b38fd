"""Stock in Redis: all or nothing, each once, and nothing for a sku that is not on sale. Every guard of the scripts
has its negative control: the same calls to the script without that guard."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path

import pytest
from django.conf import settings
from redis import ConnectionPool, Redis
from redis.crc import key_slot

from inventory.counters import whole as module
from inventory.counters.whole import NOTES, SCRIPTS, UNITS, Counters, counter_key
from inventory.errors import SoldOut, StockNotLoaded, StockReserved, StockUnavailable
from tests.factories import at_once, new_request, tally
from tests.locking.support import CutConnection


@pytest.fixture(params=["bytes", "text"])
def counters(redis: Redis, request: pytest.FixtureRequest) -> Counters:
    """The counters of the shop's Redis, by a client that gives bytes and by one that gives text."""
    return Counters(Redis.from_url(settings.REDIS_LOCATION, decode_responses=request.param == "text"))


def flawed(redis: Redis, monkeypatch: pytest.MonkeyPatch, script: str, guard: str, instead: str) -> Counters:
    """Counters with a script that lacks a guard."""
    assert guard in SCRIPTS[script]
    monkeypatch.setitem(module.SCRIPTS, script, SCRIPTS[script].replace(guard, instead))
    return Counters(redis)


# take


@pytest.mark.parametrize("quantity", [1, 2, 3])
def test_take_subtracts_and_notes_whose_units_they_are(counters: Counters, quantity: int) -> None:
    counters.load("a", 3, (), make=True)
    request = new_request(("a", quantity))
    counters.take(request)
    assert counters.left(["a"]) == {"a": 3 - quantity}
    notes = {str(key): json.loads(note) for key, note in counters.client.hgetall(NOTES).items()}
    assert [note["items"] for note in notes.values()] == [[["a", quantity]]]
    assert str(request.id) in next(iter(notes))
    assert counters.reserved() == {"a": quantity}


@pytest.mark.parametrize(("left", "quantity"), [(3, 4), (0, 1), (3, 2**53)])
def test_take_refuses_what_is_not_there_and_notes_nothing(counters: Counters, left: int, quantity: int) -> None:
    counters.load("a", left, (), make=True)
    with pytest.raises(SoldOut) as refused:
        counters.take(new_request(("a", quantity)))
    assert (refused.value.sku, refused.value.wanted, refused.value.left) == ("a", quantity, left)
    assert counters.left(["a"]) == {"a": left}
    assert counters.reserved() == {}


def test_an_off_by_one_in_the_script_sells_a_unit_that_is_not_there(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the refusal."""
    counters = flawed(redis, monkeypatch, "take", "tonumber(left) < item[2]", "tonumber(left) < 0")
    counters.load("a", 0, (), make=True)
    counters.take(new_request(("a", 1)))
    assert counters.left(["a"]) == {"a": -1}


def test_take_is_all_or_nothing(counters: Counters) -> None:
    counters.load("a", 2, (), make=True)
    counters.load("b", 1, (), make=True)
    with pytest.raises(SoldOut, match="b: 2 wanted, 1 left"):
        counters.take(new_request(("a", 1), ("b", 2)))
    assert counters.left(["a", "b"]) == {"a": 2, "b": 1}
    counters.take(new_request(("a", 2), ("b", 1)))
    assert counters.left(["a", "b"]) == {"a": 0, "b": 0}
    assert counters.reserved() == {"a": 2, "b": 1}


def test_take_says_which_sku_is_not_loaded_and_takes_nothing_of_the_others(counters: Counters) -> None:
    counters.load("a", 2, (), make=True)
    with pytest.raises(StockNotLoaded, match="b has no counter"):
        counters.take(new_request(("a", 1), ("b", 1)))
    assert counters.left(["a", "b"]) == {"a": 2, "b": None}
    assert counters.reserved() == {}


def test_the_same_request_takes_once_however_often_it_is_sent(counters: Counters) -> None:
    counters.load("a", 5, (), make=True)
    request = new_request(("a", 2))
    for _ in range(3):
        counters.take(request)
    assert counters.left(["a"]) == {"a": 3}
    assert counters.reserved() == {"a": 2}


def test_without_the_look_at_the_note_the_same_request_takes_again(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the idempotent take."""
    counters = flawed(redis, monkeypatch, "take", 'redis.call("HEXISTS", KEYS[1], ARGV[1]) == 1', "false")
    counters.load("a", 5, (), make=True)
    request = new_request(("a", 2))
    counters.take(request)
    counters.take(request)
    assert counters.left(["a"]) == {"a": 1}
    assert counters.reserved() == {"a": 4}


@pytest.mark.django_db
def test_32_takers_of_ten_units_take_ten(counters: Counters) -> None:
    counters.load("a", 10, (), make=True)
    requests = [new_request(("a", 1)) for _ in range(32)]
    answers = at_once(*[partial(counters.take, request) for request in requests])
    assert tally(answers) == {"None": 10, "StockReserved": 22}
    assert counters.left(["a"]) == {"a": 0}
    assert counters.reserved() == {"a": 10}


@pytest.mark.parametrize("wanted", [2, 3])
def test_what_is_left_for_others_is_reserved_until_they_are_sold_it_and_more_is_sold_out(
    counters: Counters, wanted: int
) -> None:
    counters.load("a", 3, (), make=True)
    counters.load("b", 3, (), make=True)
    first = new_request(("a", 2))
    counters.take(first)
    with pytest.raises(StockReserved) as early:
        counters.take(new_request(("a", wanted), ("b", 1)))
    assert early.value.sku == "a"
    with pytest.raises(SoldOut, match="a: 4 wanted, 3 left"):  # who wants three is told that they are reserved
        counters.take(new_request(("a", 4)))
    counters.confirm_reservation(first.id, first.skus)
    with pytest.raises(SoldOut, match=f"a: {wanted} wanted, 1 left"):
        counters.take(new_request(("a", wanted)))
    assert counters.left(["a", "b"]) == {"a": 1, "b": 3}


def test_without_the_look_at_what_is_reserved_it_is_sold_out_though_it_may_come_back(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the refusal is wrong a moment later."""
    counters = flawed(redis, monkeypatch, "take", "with < item[2]", "true")
    counters.load("a", 1, (), make=True)
    first = new_request(("a", 1))
    counters.take(first)
    with pytest.raises(SoldOut):
        counters.take(new_request(("a", 1)))
    counters.give_back(first.id, first.skus)
    assert counters.left(["a"]) == {"a": 1}


@pytest.mark.parametrize("lost", ["the answer", "its return too"])
def test_an_answer_that_is_lost_is_unavailable_and_withholds_nothing_unless_its_return_is_lost_too(
    redis: Redis, lost: str
) -> None:
    class Cut(CutConnection):
        pass

    pool = ConnectionPool(
        connection_class=Cut, path=redis.connection_pool.connection_kwargs["path"], retry=None, retry_on_timeout=False
    )
    counters = Counters(Redis(connection_pool=pool))
    counters.load("a", 3, (), make=True)
    first, request = new_request(("a", 1)), new_request(("a", 1))
    counters.take(first)  # the server knows the scripts from now on
    counters.give_back(first.id, first.skus)

    if lost == "its return too":
        counters._settle = Counters(Redis.from_url("unix:///nobody.sock", retry=None))._settle
    Cut.cut_next = True
    with pytest.raises(StockUnavailable):
        counters.take(request)
    assert Cut.cuts == 1
    withheld = 0 if lost == "the answer" else 1
    assert (counters.left(["a"]), redis.hlen(NOTES)) == ({"a": 3 - withheld}, withheld)
    # Once more takes it once, whichever it was.
    counters.take(request)
    assert (counters.left(["a"]), counters.reserved()) == ({"a": 2}, {"a": 1})


# give_back and confirm_reservation


def test_give_back_gives_back_once_however_often_it_is_called(counters: Counters) -> None:
    counters.load("a", 5, (), make=True)
    request = new_request(("a", 2))
    counters.take(request)
    for _ in range(3):
        counters.give_back(request.id, request.skus)
    assert counters.left(["a"]) == {"a": 5}
    assert counters.reserved() == {}


def test_without_the_look_at_the_note_it_gives_back_again(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the idempotent return: units that nobody has appear."""
    counters = flawed(redis, monkeypatch, "confirm_reservation", 'redis.call("HDEL", KEYS[1], ARGV[1])', "")
    counters.load("a", 5, (), make=True)
    request = new_request(("a", 2))
    counters.take(request)
    counters.give_back(request.id, request.skus)
    counters.give_back(request.id, request.skus)
    assert counters.left(["a"]) == {"a": 7}


def test_a_request_that_took_nothing_gives_nothing_back(counters: Counters) -> None:
    counters.load("a", 5, (), make=True)
    assert counters.give_back(new_request(("a", 2)).id, ["a"]) is False
    assert counters.left(["a"]) == {"a": 5}


def test_a_request_that_was_settled_gives_nothing_back_and_the_others_keep_their_notes(counters: Counters) -> None:
    counters.load("a", 5, (), make=True)
    counters.load("b", 5, (), make=True)
    first, second = new_request(("a", 2)), new_request(("a", 1), ("b", 1))
    counters.take(first)
    counters.take(second)
    counters.confirm_reservation(first.id, first.skus)
    counters.give_back(first.id, first.skus)
    assert counters.left(["a", "b"]) == {"a": 2, "b": 4}
    assert counters.reserved() == {"a": 1, "b": 1}


def test_units_that_come_back_after_the_sale_make_no_counter_anew(counters: Counters) -> None:
    counters.load("a", 5, (), make=True)
    counters.load("b", 5, (), make=True)
    request = new_request(("a", 2), ("b", 2))
    counters.take(request)
    counters.unload(["a"])
    counters.give_back(request.id, request.skus)
    assert counters.left(["a", "b"]) == {"a": None, "b": 5}
    assert counters.reserved() == {}


# load, unload


def test_a_counter_is_what_is_on_hand_less_what_is_reserved(counters: Counters) -> None:
    """The requests on their way have taken from the counter, and not yet from what is on hand."""
    assert counters.load("a", 5, (), make=True) == 0
    counters.take(new_request(("a", 2)))
    assert counters.load("a", 5, (), make=False) == 0
    assert counters.left(["a"]) == {"a": 3}
    assert counters.load("a", 9, (), make=False) == 4
    assert counters.left(["a"]) == {"a": 7}
    assert counters.reserved() == {"a": 2}


def test_a_counter_that_is_no_number_is_made_again(counters: Counters) -> None:
    counters.client.set(counter_key("a"), "many")
    assert counters.load("a", 5, (), make=False) == 5
    assert counters.left(["a"]) == {"a": 5}


def test_a_counter_that_is_lost_is_made_again_less_what_is_reserved(counters: Counters) -> None:
    counters.load("a", 5, (), make=True)
    counters.take(new_request(("a", 2)))
    counters.unload(["a"])
    assert counters.load("a", 5, (), make=True) == 0
    assert counters.left(["a"]) == {"a": 3}


def test_units_of_a_request_that_is_an_order_already_are_not_subtracted_twice(counters: Counters) -> None:
    """It is committed, so its units are not on hand any more, and its note is about to be settled."""
    counters.load("a", 5, (), make=True)
    counters.load("b", 5, (), make=True)
    done, coming = new_request(("a", 2), ("b", 1)), new_request(("a", 1))
    counters.take(done)
    counters.take(coming)
    assert counters.load("a", 3, {done.id, new_request(("a", 1)).id}, make=False) == 0
    assert counters.load("b", 4, {done.id}, make=False) == 0
    counters.confirm_reservation(done.id, done.skus)
    assert counters.left(["a", "b"]) == {"a": 2, "b": 4}
    assert counters.reserved() == {"a": 1}


def test_without_the_look_at_committed_notes_units_are_subtracted_twice(counters: Counters) -> None:
    """The negative control: the caller does not say which requests are orders."""
    counters.load("a", 5, (), make=True)
    counters.take(new_request(("a", 2)))
    assert counters.load("a", 3, (), make=False) == -2


def test_a_counter_that_is_not_there_is_made_only_when_asked_for(counters: Counters) -> None:
    assert counters.load("a", 5, (), make=False) is None
    assert counters.left(["a"]) == {"a": None}


def test_notes_say_whose_and_since_when(counters: Counters) -> None:
    counters.load("a", 5, (), make=True)
    first, second = new_request(("a", 2)), new_request(("a", 1))
    before = counters.client.time()[0]
    counters.take(first)
    counters.take(second)
    assert {note.request: note.items for note in counters.notes()} == {first.id: [("a", 2)], second.id: [("a", 1)]}
    assert all(before <= note.at <= counters.client.time()[0] for note in counters.notes())
    assert counters.requests() == {first.id, second.id}


@pytest.mark.parametrize("units", [0.5, -0.5, True, "1"])
def test_a_note_with_a_part_of_a_unit_cannot_be_read_and_is_said_to_be_so(
    counters: Counters, units: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The scripts count it as none, and reconciling must not pass it over in silence."""
    request = new_request(("a", 1))
    counters.client.hset(NOTES, str(request.id), json.dumps({"items": [["a", units]], "at": 1}))
    assert counters.notes() == []
    assert not counters.give_back(request.id, ["a"])
    assert [record.args[0] for record in caplog.records if record.args]


def test_units_reserved_that_are_no_number_are_counted_again(counters: Counters) -> None:
    counters.load("a", 5, (), make=True)
    counters.take(new_request(("a", 2)))
    counters.client.hset(UNITS, "a", "many")
    assert counters.recount() == [("a", 0, 2)]
    assert counters.reserved() == {"a": 2}


def test_a_counter_that_is_preheated_does_not_expire(counters: Counters) -> None:
    counters.load("a", 5, (), make=True)
    counters.take(new_request(("a", 1)))
    assert counters.client.ttl(counter_key("a")) == -1
    assert [counters.client.ttl(key) for key in (NOTES, UNITS)] == [-1, -1]


def test_unload_deletes_the_counters_that_it_is_told_and_no_other(counters: Counters) -> None:
    for sku in "abc":
        counters.load(sku, 1, (), make=True)
    counters.unload([])
    counters.unload(["a", "b", "unknown"])
    assert counters.left(["a", "b", "c"]) == {"a": None, "b": None, "c": 1}


def test_left_of_nothing_is_nothing(counters: Counters) -> None:
    assert counters.left([]) == {}


# Names


@pytest.mark.parametrize("sku", ["a", "café-☕", "with space", "with}brace", "{stock}", "a" * 64])
def test_every_sku_has_its_counter_in_the_slot_of_the_notes(counters: Counters, sku: str) -> None:
    """A script lives in one slot of a cluster, so a cart of several skus has all of its keys there."""
    assert key_slot(counter_key(sku).encode()) == key_slot(NOTES.encode())
    counters.load(sku, 2, (), make=True)
    counters.take(new_request((sku, 1)))
    assert counters.left([sku]) == {sku: 1}
    assert counters.reserved() == {sku: 1}


# Without Redis


@pytest.fixture
def nobody(tmp_path: Path) -> Counters:
    return Counters(Redis.from_url(f"unix://{tmp_path}/nobody.sock", retry=None))


def test_take_without_redis_is_unavailable_which_is_not_sold_out(nobody: Counters) -> None:
    with pytest.raises(StockUnavailable, match="Redis did not answer"):
        nobody.take(new_request(("a", 1)))


@pytest.mark.parametrize("call", ["give_back", "confirm_reservation"])
def test_what_cannot_be_told_to_redis_is_logged_by_the_requests_id(
    nobody: Counters, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    request = new_request(("a", 1))
    with caplog.at_level(logging.WARNING):
        getattr(nobody, call)(request.id, request.skus)
    assert [str(request.id) in record.getMessage() for record in caplog.records] == [True]
    assert "reconciled" in caplog.text
