"""Admin actions that pause and resume sales. The operator enters a reason, which the history of the sale keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from unfold.decorators import action as unfold_action
from unfold.widgets import UnfoldAdminTextInputWidget

from shop.admin.checked import CheckedAdmin
from shop.admin.sale_actions import run_on_sales
from shop.models import Sale
from shop.sales import lifecycle

PHASES = ("to come", "open")
"""Phases in which a sale can be paused or resumed."""


class ReasonForm(forms.Form):
    """The form with the operator's reason to pause or resume a sale."""

    why = forms.CharField(
        label="Reason",
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="Operators read it in the history of the sale. Buyers are told that the sale is paused, not why.",
    )


class PausingAdmin(CheckedAdmin):
    """The buttons and actions that pause and resume sales. They need the permission “Can pause and resume sale”."""

    def has_pause_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm("shop.pause_sale")

    @admin.action(permissions=["pause"], description="Pause: take no orders until it is resumed")
    def pause(self, request: HttpRequest, queryset: QuerySet[Sale]) -> HttpResponse | None:
        return self._ask_and_run(request, queryset, lifecycle.pause, "paused")

    @admin.action(permissions=["pause"], description="Resume: take orders again")
    def resume(self, request: HttpRequest, queryset: QuerySet[Sale]) -> HttpResponse | None:
        return self._ask_and_run(request, queryset, lifecycle.resume, "resumed")

    @unfold_action(description="Pause", url_path="pause", permissions=["pause"], icon="pause")
    def pause_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the reason, and pause one sale."""
        return self._one(request, object_id, lifecycle.pause, "paused")

    @unfold_action(description="Resume", url_path="resume", permissions=["pause"], icon="play_arrow")
    def resume_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the reason, and resume one sale."""
        return self._one(request, object_id, lifecycle.resume, "resumed")

    def get_actions_detail(self, request: HttpRequest, object_id: Any = None) -> list[Any]:
        """Return the buttons of the page of a sale: “Resume” if it is paused, else “Pause”."""
        # unfold calls this for any id in the URL, also for one that is not a number.
        known = str(object_id).isdecimal()
        paused = known and Sale.objects.filter(pk=object_id, paused_at__isnull=False).exists()
        hidden = "pause_one" if paused else "resume_one"
        return [each for each in super().get_actions_detail(request, object_id) if hidden not in each.action_name]

    def _one(self, request: HttpRequest, object_id: str, act: Callable[[int], None], done: str) -> HttpResponse:
        sale = self.get_object(request, object_id)
        if sale is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        found = self.get_queryset(request).filter(pk=sale.pk)
        return self._ask_and_run(request, found, act, done) or redirect("admin:shop_sale_change", sale.pk)

    def _ask_and_run(
        self, request: HttpRequest, queryset: QuerySet[Sale], act: Callable[[int], None], done: str
    ) -> HttpResponse | None:
        """Run the action if the form with the reason was sent. Otherwise return the page with the form."""
        form = ReasonForm(request.POST if "why" in request.POST else None)
        if request.method == "POST" and form.is_valid():
            run_on_sales(self, request, queryset, act, done, phases=PHASES, why=form.cleaned_data["why"])
            return None
        verb = {"paused": "Pause", "resumed": "Resume"}[done]
        names = ", ".join(f"“{sale}”" for sale in queryset[:5]) + (" and more" if queryset.count() > 5 else "")
        sent = [(name, value) for name in ("action", "index", "select_across", "_selected_action")
                for value in request.POST.getlist(name)]  # fmt: skip
        context = {
            **self.admin_site.each_context(request),
            "title": f"{verb} {names}",
            "form": form,
            "verb": verb,
            "sent": sent,
        }
        return render(request, "shop/pause.html", context)
