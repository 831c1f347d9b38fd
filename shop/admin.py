"""The admin: stock as it is, sales and orders."""

from __future__ import annotations

import logging
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.forms import BaseInlineFormSet, ModelForm
from django.http import HttpRequest
from redis import RedisError
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import display
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from inventory import stock, strategies
from inventory.audit import Figures
from inventory.models import StockItem
from shop import sales
from shop.models import Order, OrderItem, Product, Sale, SaleItem

logger = logging.getLogger(__name__)

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class CustomerAdmin(UserAdmin, ModelAdmin):
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


class DeliveryForm(ModelForm):
    """Stock is not overwritten: what arrives is added to it, also while it is being sold."""

    delivered = forms.IntegerField(
        min_value=1,
        max_value=1_000_000,
        required=False,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Units that have arrived now. They are added to what is received and on hand.",
    )

    class Meta:
        model = StockItem
        fields = ("sku",)


@admin.register(StockItem)
class StockAdmin(ModelAdmin):
    """Each sku as the tables and Redis have it: received = on hand + sold, or there is drift."""

    form = DeliveryForm
    list_display = ("sku", "received", "on_hand", "in_redis", "sold", "drift", "verdict")
    search_fields = ("sku",)
    list_filter_submit = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[StockItem]:
        # One statement, so on hand and sold are of one moment, also while the shop is selling.
        sold = OrderItem.objects.filter(product=OuterRef("pk"), order__state__in=Order.STANDING)
        units = sold.order_by().values("product").annotate(units=Sum("quantity")).values("units")
        return super().get_queryset(request).annotate(sold_units=Coalesce(Subquery(units), 0))

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist = super().get_changelist_instance(request)
        skus = [item.sku for item in changelist.result_list]
        try:
            counters = strategies.counters()
            left, reserved = counters.left(skus), counters.reserved()
        except RedisError as error:
            self.message_user(request, f"Redis did not answer: {error}", messages.WARNING)
            left, reserved = {}, {}
        for item in changelist.result_list:
            item.redis_left, item.redis_reserved = left.get(item.sku), reserved.get(item.sku, 0)
        return changelist

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("sku", "received", "on_hand", "sold", "drift") if obj else ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("sku", "received", "on_hand", "sold", "drift", "delivered") if obj else ("sku", "delivered")

    def save_model(self, request: HttpRequest, obj: StockItem, form: Any, change: bool) -> None:  # noqa: FBT001
        delivered = form.cleaned_data.get("delivered")
        if delivered:
            stock.deliver(obj.sku, delivered)
            transaction.on_commit(lambda: strategies.counters().add([(obj.sku, delivered)]), robust=True)
        elif not change:
            StockItem.objects.create(sku=obj.sku)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="In Redis")
    def in_redis(self, item: Any) -> str:
        if item.redis_left is None:
            return "–"
        return f"{item.redis_left} + {item.redis_reserved} reserved" if item.redis_reserved else str(item.redis_left)

    @display(description="Sold")
    def sold(self, item: Any) -> int:
        return item.sold_units

    @display(description="Drift")
    def drift(self, item: Any) -> int:
        return figures(item).drift

    @display(description="Verdict", label={"conserved": "success", "broken": "danger"})
    def verdict(self, item: Any) -> str:
        return "conserved" if figures(item).conserved else "broken"


def figures(item: Any) -> Figures:
    return Figures(item.sku, item.received, item.on_hand, item.sold_units)


@admin.register(Product)
class ProductAdmin(ModelAdmin):
    list_display = ("name", "sku")
    search_fields = ("name", "sku")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("sku",) if obj else ()


class SaleItemFormSet(BaseInlineFormSet):
    """The items of a sale, held against the other sales."""

    def clean(self) -> None:
        super().clean()
        products = [form.cleaned_data["product"] for form in self.forms if form.cleaned_data.get("product")]
        for problem in sales.overlaps(self.instance, products):
            raise forms.ValidationError(problem)


class SaleItemInline(TabularInline):
    model = SaleItem
    formset = SaleItemFormSet
    extra = 0
    autocomplete_fields = ("product",)


@admin.register(Sale)
class SaleAdmin(ModelAdmin):
    list_display = ("name", "opens_at", "closes_at", "strategy", "preheated_at")
    readonly_fields = ("preheated_at",)
    inlines = (SaleItemInline,)
    actions = ("preheat",)

    def get_readonly_fields(self, request: HttpRequest, obj: Sale | None = None) -> tuple[str, ...]:
        return ("preheated_at", "strategy") if obj and sales.strategy_is_fixed(obj) else ("preheated_at",)

    @admin.action(description="Preheat: copy the stock to where the strategy takes it from")
    def preheat(self, request: HttpRequest, queryset: QuerySet[Sale]) -> None:
        for sale in queryset:
            try:
                sales.preheat(sale)
            except RedisError as error:
                self.message_user(request, f"{sale}: Redis did not answer: {error}", messages.ERROR)
            else:
                self.message_user(request, f"{sale} is preheated.")


class OrderItemInline(TabularInline):
    model = OrderItem
    extra = 0
    can_delete = False
    fields = readonly_fields = ("product", "quantity", "price")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Order)
class OrderAdmin(ModelAdmin):
    """To look at: only `checkout` changes an order."""

    list_display = ("id", "customer", "sale", "state_label", "created_at")
    list_filter = ("state", "sale")
    list_select_related = ("customer", "sale")
    search_fields = ("id", "customer__username")
    show_full_result_count = False
    inlines = (OrderItemInline,)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="State", ordering="state", label={"pending": "info", "paid": "success", "expired": "warning"})
    def state_label(self, order: Order) -> str:
        return order.state
