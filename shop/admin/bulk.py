"""Run an action of the admin on many rows: in batches, for a limited time, with one message at the end."""

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
"""Rows that are changed together."""
TIME = 5.0
"""Seconds after which no further row or batch is begun, so that the request ends before a proxy gives up."""
SHOWN = 5
"""Refusals that the message shows."""


@dataclass(slots=True)
class BatchResult:
    """What became of a batch.

    Args:
        changed: the rows that were changed.
        unchanged: rows that had been changed before.
        refused: a sentence for each row that was not changed.
        failed: whether a server failed, so that the message is an error.
        left: rows that were not tried, because the time was over.
        gone: chosen rows that are not in the list any more.
    """

    changed: list[Any] = field(default_factory=list)
    unchanged: int = 0
    refused: list[str] = field(default_factory=list)
    failed: bool = False
    left: int = 0
    gone: int = 0


Act = Callable[[Sequence[Any], float], BatchResult]
"""Change a batch of rows. From the monotonic time that is given no further row is begun, but the first always is."""


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
    """Act on the rows of a queryset, log what was changed, and say in one message what has become of them.

    What is not reached in time is counted in the message, and so are chosen rows that have left the list. The action
    has to be safe to repeat.

    Args:
        act: changes a batch.
        done: past participle for the message, such as "cancelled".
        why: the reason that the operator has given. The history keeps it.
        all_pages: let the operator select all rows that match the filters of the list, also those that match since the
            page was shown. Without it, the action takes only rows that the page has shown: with money, the operator has
            to see each row.
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
    """A server failed while a row was changed. The text is a sentence for the message."""


def one_by_one(act: Callable[[Any], str | bool]) -> Act:
    """Return a function that acts on the rows of a batch one after the other.

    Args:
        act: changes a row. Returns whether it did, or a sentence that says why it refused. When it raises `Failed`, the
            other rows are tried all the same.
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
