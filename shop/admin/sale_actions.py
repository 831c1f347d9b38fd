"""Run an admin action on sales, and show the operator the result for each sale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from django.contrib import messages
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest
from redis import RedisError
from unfold.admin import ModelAdmin

from inventory.errors import UnknownStrategy
from shop.admin.bulk import Failed, one_by_one, run_in_batches
from shop.models import Sale
from shop.sales import lifecycle
from shop.sales.preheat import CannotPreheat


def phase(sale: Sale) -> str:
    """Return whether a sale is "to come", "open" or "over" by its times. A pause does not matter here."""
    now: datetime = sale.read_at  # type: ignore[attr-defined]
    return "to come" if now < sale.opens_at else "open" if now < sale.closes_at else "over"


def run_on_sales(
    model_admin: ModelAdmin,
    request: HttpRequest,
    queryset: QuerySet[Sale],
    act: Callable[[int], None],
    done: str,
    *,
    phases: Sequence[str],
    why: str = "",
) -> None:
    """Run an action on the sales that are in one of the phases, and refuse the others.

    For example, a sale that has not opened yet cannot be closed, because a sale closes after it opens.

    Args:
        act: the action, which takes the id of a sale.
        done: past participle for the message, such as "closed".
        why: the operator's reason to pause or resume, which the history keeps.
    """

    def run(sale: Sale) -> str | bool:
        if phase(sale) not in phases:
            return f"{sale} was not {done}: it is {phase(sale)}."
        if act is lifecycle.resume and sale.paused_at is None:
            return f"{sale} was not {done}: it is not paused."
        try:
            act(sale.pk)
        except CannotPreheat as reason:
            if act is not lifecycle.resume:
                return f"{sale} was not {done}. {reason}"
            model_admin.message_user(request, f"The stock of {sale} is not loaded yet. {reason}", messages.WARNING)
        except (RedisError, DatabaseError, UnknownStrategy) as error:
            if why:
                # Despite the error, the sale may be paused or resumed. So the history has to say who did that and why.
                model_admin.log_change(request, sale, f"{done.capitalize()} in part. {why}")
            said = error if isinstance(error, UnknownStrategy) else f"Try again. A server did not answer: {error}"
            raise Failed(f"{sale} was not fully {done}. {said}") from error
        return True

    run_in_batches(model_admin, request, queryset, one_by_one(run), done=done, why=why, all_pages=True)
