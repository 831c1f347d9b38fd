"""Run an admin action on many rows: in batches, for a limited time, with one message at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

BATCH = 100
"""Maximum number of rows in a batch."""
TIME = 5.0
"""Seconds after which an action starts no further row, so that the request ends before a proxy's timeout."""
SHOWN = 5
"""Maximum number of refused rows that the message describes one by one."""


@dataclass(slots=True)
class BatchResult:
    """The result of an action on a batch of rows.

    Args:
        changed: the rows that were changed.
        unchanged: number of rows that were already in the wanted state.
        refused: for each row that could not be changed, the text for the operator.
        failed: whether a server failed, so that the message is an error.
        left: number of rows that were not tried in time.
        gone: number of chosen rows that are no longer in the list.
    """

    changed: list[Any] = field(default_factory=list)
    unchanged: int = 0
    refused: list[str] = field(default_factory=list)
    failed: bool = False
    left: int = 0
    gone: int = 0


Act = Callable[[Sequence[Any], float], BatchResult]
"""A function that changes a batch of rows.

The second argument is a monotonic time in seconds. After that time, the function starts no further row. It always
tries the first row.
"""


def run_in_batches(
    model_admin: ModelAdmin,
    request: HttpRequest,
    queryset: QuerySet[Any],
    act: Act,
    *,
    done: str,
    why: str = "",
    all_pages: bool = False,
) -> None:
    """Run an action on the rows of a queryset, log the changed rows, and show one message with the results.

    The message also counts the rows that were not tried in time, and the chosen rows that are no longer in the list.
    The action has to be safe to repeat.

    Args:
        act: changes a batch.
        done: past participle for the message, such as "cancelled".
        why: the operator's reason, which the history keeps.
        all_pages: allow the operator to select all rows that match the filters of the list. Actions about money pass
            False, so that they change only rows on the page that the operator saw.
    """
    chosen = set(request.POST.getlist(ACTION_CHECKBOX_NAME))
    across = request.POST.get("select_across") == "1"
    if not all_pages:
        queryset = queryset.filter(pk__in=chosen)
    keys, total, reached = list(queryset.values_list("pk", flat=True)), BatchResult(), 0
    if not (all_pages and across):
        total.gone = max(0, len(chosen) - len(keys))
    ends = time.monotonic() + TIME
    while reached < len(keys) and (reached == 0 or time.monotonic() < ends):
        batch = keys[reached : reached + BATCH]
        found = model_admin.get_queryset(request).in_bulk(batch)
        result = act([found[key] for key in batch if key in found], ends)
        if result.changed:
            LogEntry.objects.log_actions(
                int(str(request.user.pk)), result.changed, CHANGE, change_message=f"{done.capitalize()}. {why}".strip()
            )
        total.changed += result.changed
        total.unchanged += result.unchanged
        total.refused += result.refused
        total.failed |= result.failed
        total.left += result.left
        reached += BATCH
    total.left += max(0, len(keys) - reached)
    names = str(queryset.model._meta.verbose_name_plural)
    sentences = _sentences(total, names, done)
    if across and not all_pages:
        sentences.append(f"Only {names} on the page that you saw were tried: go on with the next page.")
    warn = total.refused or total.left or total.gone or (across and not all_pages)
    level = messages.ERROR if total.failed else messages.WARNING if warn else messages.SUCCESS
    if sentences:
        model_admin.message_user(request, " ".join(sentences), level)


class Failed(Exception):
    """A server failed while a row was being changed. The message is for the operator."""


def one_by_one(act: Callable[[Any], str | bool]) -> Act:
    """Return a function that runs `act` on each row of a batch.

    Args:
        act: changes one row. It returns whether the row was changed, or a text that says why it cannot be changed.
            If it raises `Failed`, the other rows are still tried.
    """

    def act_on(batch: Sequence[Any], ends: float) -> BatchResult:
        result = BatchResult()
        for place, row in enumerate(batch):
            if place and time.monotonic() >= ends:
                result.left = len(batch) - place
                break
            try:
                answer = act(row)
            except Failed as failed:
                answer, result.failed = str(failed), True
            if isinstance(answer, str):
                result.refused.append(answer)
            elif answer:
                result.changed.append(row)
            else:
                result.unchanged += 1
        return result

    return act_on


def _sentences(total: BatchResult, names: str, done: str) -> list[str]:
    sentences = []
    if len(total.changed) == 1:
        sentences.append(f"{total.changed[0]} is {done}.")
    elif total.changed:
        sentences.append(f"{len(total.changed)} {names} are {done}.")
    if total.unchanged:
        sentences.append(f"{total.unchanged} {names} had been {done} before.")
    sentences += total.refused[:SHOWN]
    if len(total.refused) > SHOWN:
        sentences.append(f"{len(total.refused) - SHOWN} more {names} were not {done}.")
    if total.gone:
        sentences.append(f"Not in this list any more, and not {done}: {total.gone} of the chosen {names}.")
    if total.left:
        sentences.append(f"{total.left} {names} are left: repeat the action to go on.")
    return sentences
