"""The admin page of held locks."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from html import unescape
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission
from django.test import Client, override_settings
from redis import ConnectionPool, Redis

from locking import Lease, RedisLock, Redlock, held
from locking.contrib.django.admin import MOST
from tests.locking.support import Log
from tests.shop.conftest import staff
from tests.waiting import WAIT_TIMEOUT, wait_for

pytestmark = pytest.mark.django_db

PAGE = "/admin/locks/"
Staff = Callable[..., Client]


__all__ = ["staff"]


@pytest.fixture
def operator(redis: Redis, staff: Staff) -> Client:
    return staff("view_stockitem")


@pytest.fixture
def storekeeper(redis: Redis, staff: Staff) -> Client:
    """Return the client of a staff member who may also correct stock."""
    return staff("view_stockitem", "change_stockitem")


@contextmanager
def wanted(redis: Redis, name: str, *, by: int) -> Iterator[Lease]:
    """Hold the lock during the `with` block, with `by` waiters that have their own clients."""
    lock, pool = RedisLock(redis, name, ttl=30.0), redis.connection_pool

    def take_turn() -> None:
        own = Redis(connection_pool=ConnectionPool(pool.connection_class, **pool.connection_kwargs))
        with RedisLock(own, name, ttl=30.0).hold(timeout=WAIT_TIMEOUT):
            pass

    with ThreadPoolExecutor(max(by, 1)) as threads, lock.hold() as lease:
        turns = [threads.submit(take_turn) for _ in range(by)]
        wait_for(lambda: [each.waiters for each in held(redis) if each.name == name] == [by], "the others to wait")
        yield lease
    assert [turn.result(WAIT_TIMEOUT) for turn in turns] == [None] * by


def rows(page: str) -> list[list[str]]:
    """Return the texts of the table's cells, row by row."""
    lines = re.findall(r"<tr class=\"data-row.*?</tr>", page, re.DOTALL)
    return [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", each, re.DOTALL)] for each in lines
    ]


def summary(page: str) -> str:
    found = re.search(r'<div id="held".*', page, re.DOTALL)
    assert found
    return " ".join(re.sub(r"<[^>]+>", "", found[0]).split())


def test_a_held_lock_is_listed_and_its_name_is_text(operator: Client, redis: Redis) -> None:
    with wanted(redis, "<script>alert(1)</script>", by=2) as lease:
        response = operator.get(PAGE)
    assert response.status_code == 200
    page = response.content.decode()
    assert "<script>alert" not in page
    [[name, waiters, owner, age, ttl, fence]] = rows(page)
    assert (name, waiters, fence) == ("&lt;script&gt;alert(1)&lt;/script&gt;", "2", str(lease.fence))
    assert owner == f"{socket.gethostname()}:{os.getpid()}:{threading.current_thread().name}"
    assert 0 <= float(age.removesuffix(" s")) < WAIT_TIMEOUT
    assert 30 - WAIT_TIMEOUT < float(ttl.removesuffix(" s")) <= 30
    assert "1 held, 2 waiting" in summary(page)
    assert f"<code>{lease.fence}</code>" in page


def test_the_most_wanted_lock_comes_first(operator: Client, redis: Redis) -> None:
    with ExitStack() as stack:
        for name, waiters in (("old", 0), ("wanted", 1), ("young", 0), ("most wanted", 3)):
            stack.enter_context(wanted(redis, name, by=waiters))
        page = operator.get(PAGE).content.decode()
    assert [row[:2] for row in rows(page)] == [["most wanted", "3"], ["wanted", "1"], ["old", "0"], ["young", "0"]]
    assert "4 held, 4 waiting" in summary(page)


def test_the_page_says_when_it_sees_no_lock_and_that_it_sees_no_redlock(operator: Client, redis: Redis) -> None:
    with wanted(redis, "stock:a", by=0):
        pass
    with Redlock([redis], "elsewhere").hold(timeout=WAIT_TIMEOUT):
        page = operator.get(PAGE).content.decode()
    assert "0 held, 0 waiting" in summary(page)
    assert "It does not list Redlocks" in summary(page)
    assert "No lock is held." in page
    assert rows(page) == []


def test_the_page_is_limited(operator: Client, redis: Redis) -> None:
    for number in range(MOST):
        assert RedisLock(redis, f"order:{number:03}", ttl=30.0, renew=False).acquire()
    with wanted(redis, "stock:a", by=1):
        page = operator.get(PAGE).content.decode()
    assert f"{MOST + 1} held, 1 waiting" in summary(page)
    assert f"Only {MOST} are shown" in page
    assert len(rows(page)) == MOST
    assert rows(page)[0][0] == "stock:a"


def test_redis_down_is_503(operator: Client, tmp_path: Path) -> None:
    caches = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": f"unix://{tmp_path}/none"}}
    with override_settings(CACHES=caches):
        response = operator.get(PAGE)
    assert response.status_code == 503
    said = summary(response.content.decode())
    assert "The list of locks is not available" in said
    assert "The Redis server could not list its locks" in said
    assert "No lock is held" not in said


def test_permission_is_needed(redis: Redis, staff: Staff) -> None:
    others = Permission.objects.exclude(codename="view_stockitem").values_list("codename", flat=True)
    assert Client().get(PAGE).headers["Location"] == f"/admin/login/?next={PAGE}"
    assert staff(*others).get(PAGE).status_code == 403


def test_the_page_asks_itself_again(operator: Client, redis: Redis) -> None:
    page = operator.get(PAGE).content.decode()
    assert re.search(rf'<div id="held" hx-get="{PAGE}" hx-trigger="every 2s" hx-select="#held"', page)
    assert len(re.findall(r"<script[^>]*htmx", page)) == 1
    assert f'<a href="{PAGE}" class="' in page
    assert re.findall(r'<a href="([^"]+)" class="[^"]* active"', page) == [PAGE]


# By force


def test_force_release_is_logged(storekeeper: Client, redis: Redis, caplog: Log) -> None:
    lease = RedisLock(redis, "stock:a b&c", ttl=30.0).acquire()
    page = storekeeper.get(PAGE).content.decode()
    (link,) = re.findall(r'href="(release/[^"]+)"', page)
    asked = storekeeper.get(f"{PAGE}{unescape(link)}")
    assert "stock:a b&amp;c" in asked.content.decode()
    answer = storekeeper.post(f"{PAGE}{unescape(link)}", {"why": "its worker is gone"}, follow=True).content.decode()
    assert "was taken from its holder" in answer
    assert re.search(r"by 'staff [-0-9a-f]{36}: its worker is gone'", caplog.text)
    assert held(redis) == []
    assert lease.release() is False
    answer = storekeeper.post(f"{PAGE}{unescape(link)}", follow=True).content.decode()
    assert "is free, or has another holder by now" in answer


def test_the_next_holder_is_not_released_in_place_of_the_one_shown(storekeeper: Client, redis: Redis) -> None:
    lock = RedisLock(redis, "stock:a", ttl=30.0)
    shown = lock.acquire()
    (link,) = re.findall(r'href="(release/[^"]+)"', storekeeper.get(PAGE).content.decode())
    shown.release()
    with lock.hold() as lease:
        answer = storekeeper.post(f"{PAGE}{unescape(link)}", {"why": "stuck"}, follow=True).content.decode()
        assert "Nothing was changed" in answer
        lease.extend()


def test_who_may_only_look_may_not(operator: Client, redis: Redis) -> None:
    with RedisLock(redis, "stock:a", ttl=30.0).hold() as lease:
        assert "release/" not in operator.get(PAGE).content.decode()
        assert operator.post(f"{PAGE}release/?name=stock:a").status_code == 403
        lease.extend()


def test_neither_the_confirmation_page_nor_an_odd_fence_releases(storekeeper: Client, redis: Redis) -> None:
    with RedisLock(redis, "stock:a", ttl=30.0).hold() as lease:
        assert storekeeper.get(f"{PAGE}release/?name=stock:a").status_code == 200
        assert storekeeper.post(f"{PAGE}release/?name=stock:a&fence=x", {"why": "stuck"}).status_code == 302
        lease.extend()
