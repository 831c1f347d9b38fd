"""The admin pages of payments, with the refunds of each payment."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.contrib import admin
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest
from unfold.admin import TabularInline
from unfold.decorators import display

from shop.admin.read_only import ReadOnlyAdmin, to_the_second
from shop.admin.refunds import link_to_refunds
from shop.models import Payment, Refund
from shop.orders import payments

OUTCOME_COLOURS = {"paid": "success", "refund due": "danger", "refunded": "info", "partly refunded": "info"}


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
                return queryset.filter(Exists(Refund.objects.filter(payment=OuterRef("pk"), sent_at__isnull=False)))
        return queryset


class RefundInline(TabularInline):
    model = Refund
    extra = 0
    can_delete = False
    show_change_link = True
    fields = readonly_fields = ("amount", "note", "chargeback", "created_at", "created_by", "sent_at", "sent_by")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Refund]:
        return super().get_queryset(request).select_related("created_by", "sent_by")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("shop.view_payment")


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    none_yet = "No payments yet. They appear here when the payment provider reports them."
    list_display = (
        "reference",
        "order_id_label",
        "amount",
        "currency",
        "result",
        "due",
        "note",
        "received",
        "refunded",
    )
    list_filter = (PaymentRefundFilter, "outcome")
    search_fields = ("reference", "order__id", "order__customer__username")
    search_help_text = "Reference, order or customer"
    fields = ("reference", "order", "amount", "currency", "result", "due", "note", "received", "refunded")
    inlines = (RefundInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Payment]:
        return super().get_queryset(request).prefetch_related("refunds__sent_by")

    @display(description="Order", ordering="order")
    def order_id_label(self, payment: Payment) -> str:
        return str(payment.order_id)

    @display(description="Outcome", ordering="outcome", label=OUTCOME_COLOURS)
    def result(self, payment: Payment) -> str:
        refunds = payment.refunds.all()
        if not refunds or not all(refund.sent_at for refund in refunds):
            return "refund due" if refunds else payment.get_outcome_display().lower()
        return "refunded" if sum(refund.amount for refund in refunds) == payment.amount else "partly refunded"

    @display(description="Due")
    def due(self, payment: Payment) -> str | None:
        due = sum((refund.amount for refund in payment.refunds.all() if not refund.sent_at), Decimal())
        return link_to_refunds(f"{due:.2f}", payment=payment.pk) if due else None

    @display(description="Received", ordering="received_at")
    def received(self, payment: Payment) -> str:
        return to_the_second(payment.received_at)

    @display(description="Refunded")
    def refunded(self, payment: Payment) -> str | None:
        sent = [(refund.sent_at, refund.sent_by or "the provider") for refund in payment.refunds.all()]
        return ", ".join(f"{to_the_second(at)} by {who}" for at, who in sent if at) or None
