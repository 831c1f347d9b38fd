"""Refunds: money to send back. An operator sends it at the payment provider, and marks the refund here as sent."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from unfold.decorators import display

from shop.admin.bulk import one_by_one, run_in_batches
from shop.admin.read_only import ReadOnlyAdmin, to_the_second
from shop.models import Refund
from shop.orders import payments

BREAKABLE = ("text-right lg:text-left", "overflow-wrap: anywhere")
"""CSS class and style for a text that may break anywhere, so that a long reference does not widen the table."""


class RefundStateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("due", "Due"), ("sent", "Sent")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Refund]) -> QuerySet[Refund]:
        match self.value():
            case "due":
                return queryset.filter(sent_at=None)
            case "sent":
                return queryset.filter(sent_at__isnull=False)
        return queryset


@admin.register(Refund)
class RefundAdmin(ReadOnlyAdmin):
    """The admin page of refunds, on which an operator marks refunds as sent.

    The operator can select only refunds that the page shows. So a refund that becomes due after the page was opened
    stays due. An operator can change a refund in one way only: mark it as sent. When a chargeback gives the money back
    to the customer, the shop deletes those refunds of the payment that are still due.
    """

    none_yet = "No refunds yet. They appear here when a paid order is refunded, or an order cannot take a payment."
    list_display = ("id", "order_label", "customer", "payment_label", "money", "why", "since", "state")
    list_filter = (RefundStateFilter,)
    list_disable_select_all = True
    # List due refunds first, the oldest on top. Then list sent refunds, the latest on top.
    ordering = (F("sent_at").desc(nulls_first=True), "created_at", "pk")
    search_fields = ("payment__reference", "payment__order__id", "payment__order__customer__username", "chargeback")
    search_help_text = "Reference, order or customer"
    fields = (
        "id",
        "order_label",
        "customer",
        "payment_label",
        "money",
        "why",
        "since",
        "by",
        "state",
        "sent",
        "chargeback",
    )
    actions = ("refund",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Refund]:
        return super().get_queryset(request).select_related("payment__order__customer", "created_by", "sent_by")

    def has_refund_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("shop.change_refund")

    @admin.action(permissions=["refund"], description="Mark as refunded: the money was sent back")
    def refund(self, request: HttpRequest, queryset: QuerySet[Refund]) -> None:
        def mark(refund: Refund) -> str | bool:
            if payments.mark_refunded(refund.pk, by=int(str(request.user.pk))):
                return True
            return f"{refund} was not marked as refunded: it is not due."

        run_in_batches(self, request, queryset, one_by_one(mark), done="marked as refunded")

    @display(description="Order", ordering="payment__order")
    def order_label(self, refund: Refund) -> str:
        return link_to("order", refund.payment.order_id, refund.payment.order_id)

    @display(description="Customer", ordering="payment__order__customer__username")
    def customer(self, refund: Refund) -> str:
        return format_html('<span class="{}" style="{}">{}</span>', *BREAKABLE, refund.payment.order.customer)

    @display(description="Payment", ordering="payment__reference")
    def payment_label(self, refund: Refund) -> str:
        return link_to("payment", refund.payment_id, refund.payment)

    @display(description="Amount", ordering="amount")
    def money(self, refund: Refund) -> str:
        return f"{refund.amount:.2f}\N{NO-BREAK SPACE}{refund.payment.currency}"

    @display(description="Why", ordering="note")
    def why(self, refund: Refund) -> str:
        return refund.note or ("The provider took it back." if refund.chargeback else "")

    @display(description="Due since", ordering="created_at")
    def since(self, refund: Refund) -> str:
        return to_the_second(refund.created_at)

    @display(description="Recorded by")
    def by(self, refund: Refund) -> str:
        return "a program" if refund.created_by is None else str(refund.created_by)

    @display(description="State", label={"due": "danger", "refunded": "info", "charged back": "info"})
    def state(self, refund: Refund) -> str:
        if refund.chargeback is not None:
            return "charged back"
        return "refunded" if refund.sent_at else "due"

    @display(description="Sent", ordering="sent_at")
    def sent(self, refund: Refund) -> str | None:
        if refund.sent_at is None:
            return None
        return f"{to_the_second(refund.sent_at)} by {refund.sent_by or 'the provider'}"


def link_to(model: str, pk: Any, label: Any) -> str:
    """Return a link to the page of an order or a payment."""
    href = reverse(f"admin:shop_{model}_change", args=[pk])
    return format_html('<a class="text-link {}" style="{}" href="{}">{}</a>', *BREAKABLE, href, label)


def link_to_refunds(label: Any, **query: Any) -> str:
    """Return a link to the list of refunds, filtered by the query."""
    return format_html(
        '<a class="text-link" href="{}?{}">{}</a>', reverse("admin:shop_refund_changelist"), urlencode(query), label
    )
