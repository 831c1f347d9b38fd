"""The page of locks that are held right now."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from redis import Redis

from locking import Lease, RedisLock, Redlock, held
from locking.contrib.django.admin import MOST
from tests.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.django_db

PAGE = "/admin/locks/"


@pytest.fixture
def operator(redis: Redis) -> Client:
    """A member of the staff who may see the stock and nothing else."""
    user = User.objects.create_user("operator", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_stockitem"))
    client = Client()
    client.force_login(user)
    return client


@contextmanager
def wanted(redis: Redis, name: str, *, by: int) -> Iterator[Lease]:
    """The lock is held in the block, and so many wait for it."""
    lock = RedisLock(redis, name, ttl=30.0)

    def take_turn() -> None:
        with lock.hold(timeout=PATIENCE):
            pass

    with ThreadPoolExecutor(max(by, 1)) as pool, lock.hold() as lease:
        turns = [pool.submit(take_turn) for _ in range(by)]
        wait_for(lambda: [each.waiters for each in held(redis) if each.name == name] == [by], "the others to wait")
        yield lease
    assert [turn.result(PATIENCE) for turn in turns] == [None] * by


def rows(page: str) -> list[list[str]]:
    """The text of each cell of the table."""
    lines = re.findall(r"<tr class=\"data-row.*?</tr>", page, re.DOTALL)
    return [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", each, re.DOTALL)] for each in lines
    ]


def summary(page: str) -> str:
    found = re.search(r'<div id="held".*', page, re.DOTALL)
    assert found
    return " ".join(re.sub(r"<[^>]+>", "", found[0]).split())


def test_a_held_lock_is_there_with_its_owner_age_ttl_fence_and_waiters(operator: Client, redis: Redis) -> None:
    with wanted(redis, "stock:a", by=2) as lease:
        response = operator.get(PAGE)
    assert response.status_code == 200
    page = response.content.decode()
    [[name, waiters, owner, age, ttl, fence]] = rows(page)
    assert (name, waiters, fence) == ("stock:a", "2", str(lease.fence))
    assert owner == f"{socket.gethostname()}:{os.getpid()}:{threading.current_thread().name}"
    assert 0 <= float(age.removesuffix(" s")) < PATIENCE
    assert 30 - PATIENCE < float(ttl.removesuffix(" s")) <= 30
    assert "1 held, 2 waiting" in summary(page)
    assert f"<code>{lease.fence}</code>" in page


def test_the_most_wanted_lock_comes_first_then_the_oldest(operator: Client, redis: Redis) -> None:
    with ExitStack() as stack:
        for name, waiters in (("old", 0), ("wanted", 1), ("young", 0), ("most wanted", 3)):
            stack.enter_context(wanted(redis, name, by=waiters))
        page = operator.get(PAGE).content.decode()
    assert [row[:2] for row in rows(page)] == [["most wanted", "3"], ["wanted", "1"], ["old", "0"], ["young", "0"]]
    assert "4 held, 4 waiting" in summary(page)


def test_without_a_lock_the_page_says_so(operator: Client, redis: Redis) -> None:
    with wanted(redis, "stock:a", by=0):
        pass
    page = operator.get(PAGE).content.decode()
    assert "0 held, 0 waiting" in summary(page)
    assert "No lock is held." in page
    assert rows(page) == []


def test_the_page_says_which_locks_it_does_not_see(operator: Client, redis: Redis) -> None:
    with Redlock([redis], "elsewhere").hold(timeout=PATIENCE):
        page = summary(operator.get(PAGE).content.decode())
    assert "0 held" in page
    assert "a Redlock, or a lock in ZooKeeper, etcd, Postgres or a file, is not seen here" in page


def test_of_very_many_locks_the_page_shows_those_that_count(operator: Client, redis: Redis) -> None:
    for number in range(MOST):
        assert RedisLock(redis, f"order:{number:03}", ttl=30.0, renew=False).acquire()
    with wanted(redis, "stock:a", by=1):
        page = operator.get(PAGE).content.decode()
    assert f"{MOST + 1} held, 1 waiting" in summary(page)
    assert f"Only {MOST} are shown" in page
    assert len(rows(page)) == MOST
    assert rows(page)[0][0] == "stock:a"


def test_a_name_is_text_and_nothing_else(operator: Client, redis: Redis) -> None:
    with wanted(redis, "<script>alert(1)</script>", by=0):
        page = operator.get(PAGE).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_redis_that_is_down_is_a_message_and_503(operator: Client, tmp_path: Path) -> None:
    caches = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": f"unix://{tmp_path}/none"}}
    with override_settings(CACHES=caches):
        response = operator.get(PAGE)
    assert response.status_code == 503
    said = summary(response.content.decode())
    assert "Nobody can say which locks are held" in said
    assert "The Redis server cannot be asked for its locks" in said
    assert "No lock is held" not in said


def test_redis_that_refuses_is_a_message_and_503(operator: Client, redis: Redis) -> None:
    redis.execute_command("ACL", "SETUSER", "nobody", "on", "nopass", "-@all", "+hello", "+client", "+auth")
    location = settings.CACHES["default"]["LOCATION"].replace("unix://", "unix://nobody:x@")
    caches = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": location}}
    try:
        with override_settings(CACHES=caches):
            response = operator.get(PAGE)
    finally:
        redis.execute_command("ACL", "DELUSER", "nobody")
    assert response.status_code == 503
    assert "Nobody can say which locks are held" in summary(response.content.decode())


def test_who_may_not_see_the_stock_does_not_see_its_locks(redis: Redis) -> None:
    user = User.objects.create_user("cook", is_staff=True)
    user.user_permissions.set(Permission.objects.exclude(codename="view_stockitem"))
    client = Client()
    assert client.get(PAGE).headers["Location"] == f"/admin/login/?next={PAGE}"
    client.force_login(user)
    assert client.get(PAGE).status_code == 403


def test_the_page_asks_itself_again(operator: Client, redis: Redis) -> None:
    page = operator.get(PAGE).content.decode()
    assert re.search(rf'<div id="held" hx-get="{PAGE}" hx-trigger="every 2s" hx-select="#held"', page)
    assert len(re.findall(r"<script[^>]*htmx", page)) == 1
    assert f'<a href="{PAGE}" class="' in page
    assert re.findall(r'<a href="([^"]+)" class="[^"]* active"', page) == [PAGE]


# By force


@pytest.fixture
def storekeeper(redis: Redis) -> Client:
    """A member of the staff who may correct the stock, too."""
    user = User.objects.create_user("storekeeper", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_stockitem", "change_stockitem"]))
    client = Client()
    client.force_login(user)
    return client


def test_a_lock_is_released_by_force_and_the_log_says_by_whom_and_why(
    storekeeper: Client, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    lease = RedisLock(redis, "stock:a b&c", ttl=30.0).acquire()
    page = storekeeper.get(PAGE).content.decode()
    (link,) = re.findall(r'href="(release/[^"]+)"', page)
    asked = storekeeper.get(f"{PAGE}{link}")
    assert "stock:a b&amp;c" in asked.content.decode()
    answer = storekeeper.post(f"{PAGE}{link}", {"why": "its worker is gone"}, follow=True).content.decode()
    assert "was taken from its holder" in answer
    assert "storekeeper: its worker is gone" in caplog.text
    assert held(redis) == []
    assert lease.release() is False
    assert "Nobody held" in storekeeper.post(f"{PAGE}{link}", follow=True).content.decode()


def test_who_may_only_look_may_not(operator: Client, redis: Redis) -> None:
    with RedisLock(redis, "stock:a", ttl=30.0).hold() as lease:
        assert "release/" not in operator.get(PAGE).content.decode()
        assert operator.post(f"{PAGE}release/?name=stock:a").status_code == 403
        lease.extend()


def test_looking_at_the_question_releases_nothing(storekeeper: Client, redis: Redis) -> None:
    with RedisLock(redis, "stock:a", ttl=30.0).hold() as lease:
        assert storekeeper.get(f"{PAGE}release/?name=stock:a").status_code == 200
        lease.extend()
