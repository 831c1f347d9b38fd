"""Payments. An operator marks those that were refunded."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.decorators import display

from shop.admin.read_only import ReadOnlyAdmin, to_the_second
from shop.models import Payment
from shop.orders import payments

OUTCOME_COLOURS = {"paid": "success", "refund due": "danger", "refunded": "info"}


class PaymentRefundFilter(admin.SimpleListFilter):
    title = "refund"
    parameter_name = "refund"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("due", "Due"), ("done", "Refunded")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Payment]) -> QuerySet[Payment]:
        match self.value():
            case "due":
                return payments.refunds_due(queryset)
            case "done":
                return queryset.filter(refunded_at__isnull=False)
        return queryset


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    list_display = ("reference", "order_id_label", "amount", "currency", "result", "note", "received", "refunded")
    list_filter = (PaymentRefundFilter, "outcome")
    list_select_related = ("refunded_by",)
    search_fields = ("reference", "order__id", "order__customer__username")
    search_help_text = "Reference, order or customer"
    fields = ("reference", "order", "amount", "currency", "result", "note", "received", "refunded")
    actions = ("refund",)

    def has_refund_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("shop.change_payment")

    @admin.action(permissions=["refund"], description="Mark as refunded: the money was sent back")
    def refund(self, request: HttpRequest, queryset: QuerySet[Payment]) -> None:
        for payment in queryset:
            if payments.mark_refunded(payment.pk, by=int(str(request.user.pk))):
                self.log_change(request, payment, "Marked as refunded.")
                self.message_user(request, f"{payment} is marked as refunded.", messages.SUCCESS)
            else:
                self.message_user(request, f"{payment} was not changed: no refund is due.", messages.WARNING)

    @display(description="Order", ordering="order")
    def order_id_label(self, payment: Payment) -> str:
        return str(payment.order_id)

    @display(description="Outcome", ordering="outcome", label=OUTCOME_COLOURS)
    def result(self, payment: Payment) -> str:
        return "refunded" if payment.refunded_at else payment.get_outcome_display().lower()

    @display(description="Received", ordering="received_at")
    def received(self, payment: Payment) -> str:
        return to_the_second(payment.received_at)

    @display(description="Refunded", ordering="refunded_at")
    def refunded(self, payment: Payment) -> str | None:
        return f"{to_the_second(payment.refunded_at)} by {payment.refunded_by}" if payment.refunded_at else None
