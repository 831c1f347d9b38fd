"""Run the preflight checks. If a check cannot be made because a server does not answer, its result is red."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.db import DatabaseError
from redis import RedisError

from shop.models import Sale
from shop.preflight import sale_checks, server_checks, settings_checks
from shop.preflight.finding import Finding


def of_shop() -> list[Finding]:
    """Run the preflight checks of settings and servers."""
    return [_run(check) for check in (*settings_checks.CHECKS, *server_checks.CHECKS)]


def of_sale(sale: Sale) -> list[Finding]:
    """Run the preflight checks of one sale."""
    return [_run(partial(check, sale), check.__name__) for check in sale_checks.CHECKS]


def _run(check: Callable[[], Finding], name: str = "") -> Finding:
    shown = (name or getattr(check, "__name__", "")).replace("_", " ").capitalize()
    try:
        return check()
    except RedisError as error:
        text = f"Redis does not answer, or refuses the command: {str(error).rstrip('.')}."
        return Finding(
            shown, "red", text, "Start Redis, and check that the workers are there.", "incidents.md#redis-is-away"
        )
    except DatabaseError as error:
        text = f"Postgres does not answer, or refuses the query: {str(error).strip().rstrip('.')}."
        return Finding(shown, "red", text, "Start Postgres.", "incidents.md#postgres-is-away-or-read-only")
