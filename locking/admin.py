"""The admin's page of locks that are held right now."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import format_html
from django_redis import get_redis_connection
from redis import RedisError

from locking import LockUnavailable, registry
from locking.registry import HeldLock

MOST = 100
"""Locks on the page. The most wanted come first, so nothing is missed that anybody waits for."""

PERMISSION = "inventory.view_stockitem"
"""A lock is no model and has no permission of its own: who may see the stock may see who holds it."""


def may_see_locks(request: HttpRequest) -> bool:
    return bool(request.user.has_perm(PERMISSION))


def most_wanted() -> tuple[list[HeldLock], str]:
    """The locks that are held, those that most wait for first, then the oldest; and why there are none to show."""
    try:
        locks = registry.held(get_redis_connection("default"))
    except (LockUnavailable, RedisError) as error:
        return [], str(error)
    return sorted(locks, key=lambda lock: (-lock.waiters, -(lock.age or 0))), ""


@permission_required(PERMISSION, raise_exception=True)
def held_locks(request: HttpRequest) -> HttpResponse:
    """Who holds which lock, since when and until when, and how many wait."""
    locks, error = most_wanted()
    table = {
        "headers": ("Lock", "Waiters", "Owner", "Age", "TTL", "Fence"),
        "rows": [row(lock) for lock in locks[:MOST]],
    }
    context = {
        **admin.site.each_context(request),
        "title": "Locks",
        "locks": len(locks),
        "waiters": sum(lock.waiters for lock in locks),
        "most": MOST,
        "table": table,
        "error": error,
    }
    return render(request, "locking/held.html", context, status=503 if error else 200)


def row(lock: HeldLock) -> list[Any]:
    return [
        lock.name,
        lock.waiters,
        lock.owner,
        "–" if lock.age is None else f"{lock.age:.1f} s",
        "never" if lock.ttl is None else f"{lock.ttl:.1f} s",
        "–" if lock.fence is None else format_html("<code>{}</code>", lock.fence),
    ]
