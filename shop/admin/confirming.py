"""Run an action of a list on one row, from a button on its page, after a page that asks whether it is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from unfold.admin import ModelAdmin


def confirmed_one(
    model_admin: ModelAdmin,
    request: HttpRequest,
    object_id: str,
    action: Callable[[HttpRequest, QuerySet[Any]], None],
    *,
    verb: str,
    text: str,
) -> HttpResponse:
    """Run the action if the form of the page was sent. Any other request shows the page and changes nothing.

    Args:
        action: the action of the list. It says in a message what has become of the row, and records it in the history.
        verb: what the button says, such as "Close now".
        text: what happens then.
    """
    row = model_admin.get_object(request, object_id)
    if row is None:
        return model_admin._get_obj_does_not_exist_redirect(request, model_admin.opts, object_id)
    page = f"admin:{model_admin.opts.app_label}_{model_admin.opts.model_name}_change"
    if request.method == "POST":
        action(request, model_admin.get_queryset(request).filter(pk=row.pk))
        return redirect(page, row.pk)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": f"{verb}: {row}",
        "verb": verb,
        "text": text,
        "back": page,
        "row": row,
    }
    return render(request, "shop/confirm.html", context)
