"""Admin actions that pause and resume sales. The operator enters a reason, which the history of the sale keeps."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action as unfold_action

from shop.admin.checked import CheckedAdmin
from shop.admin.reasons import run_on_one, run_with_reason
from shop.admin.sale_actions import run_on_sales
from shop.models import Sale
from shop.sales import lifecycle

PHASES = ("to come", "open")
"""Phases in which a sale can be paused or resumed."""
READERS = "Operators read it in the history of the sale. Buyers are told that the sale is paused, not why."
PAUSES = (
    "When the next page appears, the sale takes no new orders. Earlier orders are kept: queued ones are saved, and all "
    "of them can be paid. Buyers see that the sale is paused. Those who have pressed Buy are served automatically when "
    "you resume it."
)
RESUMES = (
    "The sale takes orders again, and the stock for its strategy is loaded. Buyers who have pressed Buy during the "
    "pause are served automatically."
)


class PausingAdmin(CheckedAdmin):
    """The buttons and actions that pause and resume sales. They need the permission “Can pause and resume sale”."""

    def has_pause_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm("shop.pause_sale")

    @admin.action(permissions=["pause"], description="Pause: take no orders until it is resumed")
    def pause(self, request: HttpRequest, queryset: QuerySet[Sale]) -> HttpResponse | None:
        def run(why: str) -> None:
            run_on_sales(self, request, queryset, lifecycle.pause, "paused", phases=PHASES, why=why)

        return run_with_reason(self, request, queryset, run, verb="Pause", text=PAUSES, help_text=READERS)

    @admin.action(permissions=["pause"], description="Resume: take orders again")
    def resume(self, request: HttpRequest, queryset: QuerySet[Sale]) -> HttpResponse | None:
        def run(why: str) -> None:
            run_on_sales(self, request, queryset, lifecycle.resume, "resumed", phases=PHASES, why=why)

        return run_with_reason(self, request, queryset, run, verb="Resume", text=RESUMES, help_text=READERS)

    @unfold_action(description="Pause", url_path="pause", permissions=["pause"], icon="pause")
    def pause_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the reason, and pause one sale."""
        return run_on_one(self, request, object_id, self.pause)

    @unfold_action(description="Resume", url_path="resume", permissions=["pause"], icon="play_arrow")
    def resume_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the reason, and resume one sale."""
        return run_on_one(self, request, object_id, self.resume)

    def get_actions_detail(self, request: HttpRequest, object_id: Any = None) -> list[Any]:
        """Return the buttons on the page of a sale. Leave out “Pause” if the sale is paused, otherwise “Resume”."""
        # unfold calls this for any id in the URL, also for one that is not a number.
        known = str(object_id).isdecimal()
        paused = known and Sale.objects.filter(pk=object_id, paused_at__isnull=False).exists()
        hidden = "pause_one" if paused else "resume_one"
        return [each for each in super().get_actions_detail(request, object_id) if hidden not in each.action_name]
