"""Admin pages: list the `RedisLock`s that are held, and release one by force."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.html import format_html
from django_redis import get_redis_connection

from locking import LockUnavailable, registry
from locking.registry import HeldLock

MOST = 100
"""Maximum number of locks on the page. Locks with the most waiters come first."""

PERMISSION = "inventory.view_stockitem"
"""Permission to see the page. A lock is not a model, so it has no permission of its own."""

FORCE = "inventory.change_stockitem"
"""Permission to release a lock by force, which puts the stock at risk."""


def may_see_locks(request: HttpRequest) -> bool:
    return bool(request.user.has_perm(PERMISSION))


def most_wanted() -> tuple[list[HeldLock], str]:
    """Return the held locks, sorted by number of waiters and age, highest first; and an error message, or ""."""
    try:
        locks = registry.held(get_redis_connection("default"))
    except LockUnavailable as error:
        return [], str(error)
    return sorted(locks, key=lambda lock: (-lock.waiters, -(lock.age or 0))), ""


@permission_required(PERMISSION, raise_exception=True)
def held_locks(request: HttpRequest) -> HttpResponse:
    """Show up to `MOST` held locks, each with its owner, age, TTL, fence and number of waiters."""
    locks, error = most_wanted()
    may_force = request.user.has_perm(FORCE)
    table = {
        "headers": ("Lock", "Waiters", "Owner", "Age", "TTL", "Fence", *(("By force",) if may_force else ())),
        "rows": [row(lock, may_force=may_force) for lock in locks[:MOST]],
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


@permission_required(FORCE, raise_exception=True)
def release_by_force(request: HttpRequest) -> HttpResponse:
    """Show a form that asks for the reason. On POST, release the grant that the list of locks has shown.

    If the list showed no fence for the grant, release the present grant.
    """
    name, fence = request.GET.get("name", ""), request.GET.get("fence", "")
    if request.method == "POST":
        why = request.POST.get("why", "").strip() or "no reason given"
        try:
            released = registry.force_release(
                get_redis_connection("default"),
                name,
                by=f"{request.user.get_username()}: {why}",
                fence=int(fence) if fence else None,
            )
        except (LockUnavailable, ValueError) as error:  # ValueError: the name or fence in the address is invalid
            messages.error(request, str(error))
        else:
            if released:
                messages.success(request, f"Lock {name} was taken from its holder. The log has your name and reason.")
            else:
                messages.warning(request, f"Lock {name} is free, or has another holder by now. Nothing was changed.")
        return redirect("admin_locks")
    context = {**admin.site.each_context(request), "title": f"Release lock {name} by force", "name": name}
    return render(request, "locking/release.html", context)


def row(lock: HeldLock, *, may_force: bool) -> list[Any]:
    """Return the cells of a lock's row in the table."""
    grant = {"name": lock.name} | ({} if lock.fence is None else {"fence": lock.fence})
    force = format_html('<a href="release/?{}" class="text-link">Release…</a>', urlencode(grant))
    return [
        lock.name,
        lock.waiters,
        lock.owner or "just handed over",
        "–" if lock.age is None else f"{lock.age:.1f} s",
        "never" if lock.ttl is None else f"{lock.ttl:.1f} s",
        "–" if lock.fence is None else format_html("<code>{}</code>", lock.fence),
        *([force] if may_force else []),
    ]
