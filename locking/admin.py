"""The admin's page of locks that are held right now."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django_redis import get_redis_connection
from redis import RedisError

from locking import registry

MOST = 200


def held_locks(request: HttpRequest) -> HttpResponse:
    """Who holds which lock, since when and until when, and how many wait."""
    error = ""
    locks: list[registry.HeldLock] = []
    try:
        locks = registry.held(get_redis_connection("default"), limit=MOST)
    except RedisError as failure:
        error = f"Redis did not answer: {failure}"
    context = {**admin.site.each_context(request), "title": "Locks", "locks": locks, "most": MOST, "error": error}
    return render(request, "locking/held.html", context, status=503 if error else 200)
