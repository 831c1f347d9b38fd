"""Preflight checks of Postgres, Redis and Celery."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django_redis import get_redis_connection

from inventory.strategies import registry
from shop import clock, heartbeat
from shop.models import Sale
from shop.preflight.finding import KEEP, Finding

OTHERS = 10
"""Number of connections to Postgres to reserve for Celery, the admin, health checks and an operator."""
SKEW, WRONG_CLOCK = 1.0, 30.0
"""Seconds by which clocks may differ. The check warns from `SKEW`, and is red from `WRONG_CLOCK`.

Tokens and payments fail when clocks differ.
"""
FULL_MEMORY = 0.8
"""Share of Redis's `maxmemory` in use from which the check is red."""


def postgres() -> Finding:
    """Check that Postgres accepts writes, keeps committed data after a crash, and has the tables of this version."""
    check = "Postgres"
    found = _settings("fsync", "synchronous_commit", "full_page_writes", "transaction_read_only")
    if found["transaction_read_only"] == "on":
        return Finding(check, "red", "Postgres is read-only, such as a standby.", "Let DATABASE_URL name the primary.")
    if off := [name for name in ("fsync", "synchronous_commit", "full_page_writes") if found[name] == "off"]:
        text = f"A crash loses orders that were answered 201. Off: {', '.join(off)}."
        return Finding(check, "red", text, "Leave fsync, full_page_writes and synchronous_commit on.")
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return Finding(
            check, "red", "Some migrations are not applied.", "Run manage.py migrate.", "deployment.md#start"
        )
    return Finding(check, "ok", "It keeps what it has committed, and all migrations are applied.")


def connections() -> Finding:
    """Check that Postgres accepts all connections that the processes of one web server may open.

    Each connection counts twice, because the locks of some strategies use a connection of their own.
    """
    check, webs = "Connections to Postgres", settings.WEB_PROCESSES * settings.WEB_DATABASE_CONNECTIONS
    if settings.DATABASE_POOLER:
        text = f"The limit of the pooler cannot be read. One web server may open {webs + OTHERS} connections."
        return Finding(
            check, "warning", text, "Let max_client_conn cover all connections of the shop.", "deployment.md#pgbouncer"
        )
    found = _settings("max_connections", "superuser_reserved_connections", "reserved_connections")
    allowed = int(found["max_connections"]) - sum(
        int(found[name]) for name in ("superuser_reserved_connections", "reserved_connections")
    )
    needed = webs * 2 + OTHERS
    if allowed < needed:
        text = f"One web server may open {needed} connections, and {allowed} are allowed."
        return Finding(check, "red", text, "Raise max_connections.")
    return Finding(check, "ok", f"{allowed} are allowed, enough for {(allowed - OTHERS) // (webs * 2)} web servers.")


def redis_certificate() -> Finding:
    """Check that the shop verifies the certificate of Redis. An option in the Redis URL can turn this off."""
    check, address = "Certificate of Redis", urlsplit(settings.REDIS_LOCATION)
    if address.scheme != "rediss":
        return Finding(check, "ok", "Redis is not reached by TLS.")
    if "none" in parse_qs(address.query).get("ssl_cert_reqs", []):  # Some hosted services demand this option.
        text = "Anybody on the way to Redis can pose as Redis and learn its password: its certificate is not verified."
        return Finding(check, "warning", text, "Leave ssl_cert_reqs=none out of REDIS_URL.")
    return Finding(check, "ok", "Web servers and Celery verify it.")


def redis_alone() -> Finding:
    """Check that Redis is a primary without cluster mode. A replica refuses writes, and Celery cannot use a cluster."""
    check, found = "Kind of Redis", get_redis_connection("default").info()
    if found.get("cluster_enabled"):
        text = "Redis is in cluster mode, in which no worker gets a task."
        return Finding(check, "red", text, "Let REDIS_URL name a primary without cluster mode.")
    if found["role"] != "master":
        text = "Redis is a replica, which refuses writes."
        return Finding(check, "red", text, "Let REDIS_URL name a primary without cluster mode.")
    return Finding(check, "ok", "It is a primary and in no cluster.")


def redis_keeps() -> Finding:
    """Check that Redis does not lose queued orders, locks and reservations, by eviction or in a crash."""
    check, risks = "Redis keeps its data", registry.queue().risks()
    if risks:
        queueing = [name for name in registry.NAMES if registry.get(name).queues]
        planned = Sale.objects.filter(strategy__in=queueing, closes_at__gt=clock.now()).exists()
        level: Any = "red" if planned and not settings.QUEUED_ORDERS_MAY_BE_LOST else "warning"
        text = f"{'; '.join(risks)}."
        return Finding(check, level, text[0].upper() + text[1:], KEEP)
    if _config("appendfsync") == "everysec":
        text = "A crash loses up to a second of what lua-queue has answered 202."
        return Finding(check, "warning", text, KEEP)
    return Finding(check, "ok", "It evicts nothing, and a restart keeps everything.")


def redis_memory() -> Finding:
    check, memory = "Memory of Redis", get_redis_connection("default").info("memory")
    used, most = int(memory["used_memory"]), int(memory.get("maxmemory", 0))
    if most and used > FULL_MEMORY * most:
        text = f"{used / most:.0%} of maxmemory is in use. A full Redis refuses writes."
        return Finding(check, "red", text, "Raise maxmemory.")
    return Finding(
        check, "ok", f"{used / 1e6:.0f} MB are in use, {f'of {most / 1e6:.0f} MB' if most else 'without a limit'}."
    )


def workers() -> Finding:
    found = heartbeat.alive()[heartbeat.WORKER]
    if not found:
        text = "No worker is alive: queued orders are not saved, and unpaid ones do not expire."
        return Finding("Workers", "red", text, "Start a worker.", "deployment.md#start")
    return Finding("Workers", "ok", f"Alive: {found}.")


def beat() -> Finding:
    if not (found := heartbeat.alive()[heartbeat.BEAT]):
        text = "Beat is not alive: no sale is preheated, and no order expires."
        return Finding("Beat", "red", text, "Start beat. Exactly one may run.", "deployment.md#start")
    if found > 1:
        text = f"{found} schedulers are alive, so each task runs {found} times."
        return Finding("Beat", "warning", text, "Stop all but one.", "deployment.md#start")
    return Finding("Beat", "ok", "Alive.")


def clocks() -> Finding:
    """Compare the clocks of Postgres, of Redis and of this machine."""
    check, before = "Clocks", time.time()
    of_postgres = clock.now().timestamp()
    seconds, microseconds = get_redis_connection("default").time()
    after = time.time()
    here = (before + after) / 2
    off = max(abs(of_postgres - here), abs(seconds + microseconds / 1e6 - here)) - (after - before) / 2
    if off > WRONG_CLOCK:
        text = f"Clocks differ by {off:.0f} s: tokens end too early or too late."
        return Finding(check, "red", text, "Synchronise the clocks with NTP.")
    if off > SKEW:
        return Finding(check, "warning", f"Clocks differ by {off:.1f} s.", "Synchronise the clocks with NTP.")
    return Finding(check, "ok", f"Postgres, Redis and this machine agree within {SKEW:.0f} s.")


def _settings(*names: str) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, current_setting(name, true) FROM unnest(%s::text[]) AS asked (name)", [list(names)]
        )
        return {name: value or "0" for name, value in cursor.fetchall()}


def _config(name: str) -> str:
    """Return a setting of Redis; empty if Redis refuses CONFIG GET, as managed services do."""
    from redis import ResponseError

    try:
        return str(get_redis_connection("default").config_get(name).get(name, ""))
    except ResponseError:
        return ""


CHECKS = (postgres, connections, redis_certificate, redis_alone, redis_keeps, redis_memory, workers, beat, clocks)
