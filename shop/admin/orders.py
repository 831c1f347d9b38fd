"""Orders, to find and to look at: only `checkout` changes one."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.timezone import localtime
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import display

from shop.models import Order, OrderItem

STATE_COLOURS = {"pending": "info", "paid": "success", "expired": "warning"}


class OrderItemInline(TabularInline):
    model = OrderItem
    extra = 0
    can_delete = False
    fields = readonly_fields = ("product", "quantity", "price")

    def get_queryset(self, request: HttpRequest) -> QuerySet[OrderItem]:
        return super().get_queryset(request).select_related("product")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Order)
class OrderAdmin(ModelAdmin):
    list_display = ("id", "customer", "ordered", "state_label", "placed")
    list_filter = ("state", "sale")
    list_select_related = ("customer",)
    search_fields = ("id", "customer__username", "key")
    search_help_text = "Id, customer or idempotency key"
    fields = ("id", "state_label", "customer", "sale", "placed", "key")
    inlines = (OrderItemInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Order]:
        return super().get_queryset(request).prefetch_related("items")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="Ordered")
    def ordered(self, order: Order) -> str:
        return ", ".join(str(item) for item in order.items.all())

    @display(description="State", ordering="state", label=STATE_COLOURS)
    def state_label(self, order: Order) -> str:
        return order.state

    @display(description="Placed", ordering="created_at")
    def placed(self, order: Order) -> str:
        # A sale is over in seconds: the minute alone would say nothing.
        return f"{localtime(order.created_at):%Y-%m-%d %H:%M:%S}"
