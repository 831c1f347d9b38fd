"""The admin page of unmatched reports: money that fits no order. An operator marks each report that is settled."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.decorators import display

from shop.admin.bulk import one_by_one, run_in_batches
from shop.admin.read_only import ReadOnlyAdmin, to_the_second
from shop.models import UnmatchedReport
from shop.orders import unmatched


class SettledFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "Open"), ("settled", "Settled")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[UnmatchedReport]) -> QuerySet[UnmatchedReport]:
        match self.value():
            case "open":
                return unmatched.open_reports(queryset)
            case "settled":
                return queryset.filter(settled_at__isnull=False)
        return queryset


@admin.register(UnmatchedReport)
class UnmatchedReportAdmin(ReadOnlyAdmin):
    none_yet = "No unmatched reports. They appear here when the payment provider reports a payment that fits no order."
    list_display = ("__str__", "received", "reason", "report", "state", "settled")
    list_filter = (SettledFilter,)
    list_select_related = ("settled_by",)
    search_fields = ("report", "reason")
    search_help_text = "Any part of the report"
    fields = ("received", "reason", "report", "state", "settled")
    actions = ("settle",)
    # Operators may only settle reports that they have seen, so do not let them select the reports of all pages.
    list_disable_select_all = True

    def has_settle_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("shop.change_unmatchedreport")

    @admin.action(permissions=["settle"], description="Mark as settled: the money was sent back or booked by hand")
    def settle(self, request: HttpRequest, queryset: QuerySet[UnmatchedReport]) -> None:
        def settle(report: UnmatchedReport) -> bool:
            return unmatched.settle(report.pk, by=int(str(request.user.pk)))

        run_in_batches(self, request, queryset, one_by_one(settle), done="settled")

    @display(description="State", label={"open": "danger", "settled": "success"})
    def state(self, report: UnmatchedReport) -> str:
        return "settled" if report.settled_at else "open"

    @display(description="Received", ordering="received_at")
    def received(self, report: UnmatchedReport) -> str:
        return to_the_second(report.received_at)

    @display(description="Settled", ordering="settled_at")
    def settled(self, report: UnmatchedReport) -> str | None:
        if report.settled_at is None:
            return None
        return f"{to_the_second(report.settled_at)} by {report.settled_by or 'a repeated report'}"
