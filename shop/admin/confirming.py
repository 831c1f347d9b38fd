"""A confirmation page between a button on the page of a row and the action that it runs."""

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
    """Run the action on one row if the request is a POST. Any other request only shows the confirmation page.

    Args:
        action: the action, which the list of rows also offers. It shows a message, and records the change in the
            history.
        verb: the label of the button, such as "Close now".
        text: what the action will do, for the operator.
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
