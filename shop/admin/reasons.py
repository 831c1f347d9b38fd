"""A page that asks an operator for a reason before an action. The history of the row keeps the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextInputWidget

OF_THE_LIST = ("action", "index", "select_across", "_selected_action")
"""Form fields with which Django's list of rows sends an action."""
NAMED = 5
"""Maximum number of rows that the title of the page names."""


def reason_field(help_text: str) -> forms.CharField:
    """Return the form field for the reason.

    Args:
        help_text: says who reads the reason.
    """
    return forms.CharField(label="Reason", max_length=200, widget=UnfoldAdminTextInputWidget, help_text=help_text)


class ReasonForm(forms.Form):
    """A form with a reason alone. See `reason_field` for `help_text`."""

    def __init__(self, *args: Any, help_text: str) -> None:
        super().__init__(*args)
        self.fields["why"] = reason_field(help_text)


def run_with_reason(
    model_admin: ModelAdmin,
    request: HttpRequest,
    queryset: QuerySet[Any],
    run: Callable[[str], None],
    *,
    verb: str,
    text: str,
    help_text: str,
) -> HttpResponse | None:
    """Run the action if the form with the reason was sent. Otherwise return the page with the form.

    Args:
        run: the action on the rows of the queryset. Its argument is the reason.
        verb: the label of the button, such as "Pause".
        text: what the action will do, for the operator.
        help_text: says who reads the reason.
    """
    form = ReasonForm(request.POST if "why" in request.POST else None, help_text=help_text)
    if request.method == "POST" and form.is_valid():
        run(form.cleaned_data["why"])
        return None
    names = ", ".join(f"“{row}”" for row in queryset[:NAMED]) + (" and more" if queryset.count() > NAMED else "")
    sent = [(name, value) for name in OF_THE_LIST for value in request.POST.getlist(name)]
    context = {
        **model_admin.admin_site.each_context(request),
        "title": f"{verb} {names}",
        "form": form,
        "verb": verb,
        "text": text,
        "sent": sent,
    }
    return render(request, "shop/reason.html", context)


def run_on_one(
    model_admin: ModelAdmin,
    request: HttpRequest,
    object_id: str,
    action: Callable[[HttpRequest, QuerySet[Any]], HttpResponse | None],
) -> HttpResponse:
    """Run an action of the list on one row. Return the page that asks for a reason, or a redirect to the row."""
    row = model_admin.get_object(request, object_id)
    if row is None:
        return model_admin._get_obj_does_not_exist_redirect(request, model_admin.opts, object_id)
    page = f"admin:{model_admin.opts.app_label}_{model_admin.opts.model_name}_change"
    return action(request, model_admin.get_queryset(request).filter(pk=row.pk)) or redirect(page, row.pk)
