"""Products and the sales that offer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.forms import BaseInlineFormSet
from django.forms.formsets import DELETION_FIELD_NAME
from django.http import HttpRequest
from django.utils import timezone
from redis import RedisError
from unfold.admin import ModelAdmin, StackedInline
from unfold.decorators import display

from inventory.models import StockItem
from shop.models import Product, Sale, SaleItem
from shop.sales import lifecycle


@admin.register(Product)
class ProductAdmin(ModelAdmin):
    list_display = ("name", "sku")
    search_fields = ("name", "sku")

    def get_readonly_fields(self, request: HttpRequest, obj: Product | None = None) -> tuple[str, ...]:
        return ("sku",) if obj else ()


class SaleItemFormSet(BaseInlineFormSet):
    """The items of a sale, held against the other sales."""

    def clean(self) -> None:
        super().clean()
        if self.instance.opens_at is None or self.instance.closes_at is None:
            return  # the sale's own form says so
        kept = [form.cleaned_data for form in self.forms if not form.cleaned_data.get(DELETION_FIELD_NAME)]
        products = [item["product"] for item in kept if item.get("product")]
        if problems := list(lifecycle.overlaps(self.instance, products)):
            raise forms.ValidationError(problems)


class SaleItemInline(StackedInline):
    model = SaleItem
    formset = SaleItemFormSet
    extra = 0
    autocomplete_fields = ("product",)
    fields = (("product", "price", "limit"),)

    def get_queryset(self, request: HttpRequest) -> QuerySet[SaleItem]:
        return super().get_queryset(request).select_related("product")


@admin.register(Sale)
class SaleAdmin(ModelAdmin):
    list_display = ("name", "state", "opens_at", "closes_at", "strategy", "preheated")
    search_fields = ("name",)
    fields = ("name", ("opens_at", "closes_at"), ("strategy", "preheated_at"))
    inlines = (SaleItemInline,)
    actions = ("preheat", "close")
    # Labels above the fields: an item is one line on a desk, and readable on a phone. Only older unfolds know this.
    compressed_fields = False

    def get_readonly_fields(self, request: HttpRequest, obj: Sale | None = None) -> tuple[str, ...]:
        return ("preheated_at", "strategy") if obj and obj.strategy_is_fixed else ("preheated_at",)

    def has_delete_permission(self, request: HttpRequest, obj: Sale | None = None) -> bool:
        """A sale that has begun in any way is closed, not deleted: Redis may hold copies of its stock."""
        return super().has_delete_permission(request, obj) and not (obj and obj.strategy_is_fixed)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Sale | None:
        """The sale; locked when it is about to change, so that nobody preheats it between the look and the change."""
        sale = super().get_object(request, object_id, from_field)
        if sale is None or request.method != "POST":
            return sale
        return Sale.objects.select_for_update(no_key=True).filter(pk=sale.pk).first()

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:  # noqa: FBT001
        """Load what a sale that is loaded offers now: another one may have split the stock, or have no copy of it."""
        super().save_related(request, form, formsets, change)
        stocked = StockItem.objects.values("sku")
        for item in form.instance.items.exclude(product__sku__in=stocked).select_related("product"):
            missing = f"There is no stock of {item.product.sku}: nobody can buy it before some is delivered."
            self.message_user(request, missing, messages.WARNING)
        again = Sale.objects.filter(pk=form.instance.pk, closes_at__gt=timezone.now())
        if form.instance.is_loaded and any(items.has_changed() for items in formsets):
            states = ("to come", "open")
            transaction.on_commit(lambda: self.do(request, again, lifecycle.preheat, "preheated", states=states))

    @admin.action(permissions=["change"], description="Preheat: copy the stock to where the strategy takes it from")
    def preheat(self, request: HttpRequest, queryset: QuerySet[Sale]) -> None:
        self.do(request, queryset, lifecycle.preheat, "preheated", states=("to come", "open"))

    @admin.action(permissions=["change"], description="Close now: take no more orders, remove the copies")
    def close(self, request: HttpRequest, queryset: QuerySet[Sale]) -> None:
        self.do(request, queryset, lifecycle.close, "closed", states=("open",))

    def do(
        self,
        request: HttpRequest,
        queryset: QuerySet[Sale],
        act: Callable[[int], None],
        done: str,
        *,
        states: Sequence[str],
    ) -> None:
        """Act on the sales that are in one of the states: the copies of one that is over may be the next one's."""
        for sale in queryset:
            if self.state(sale) not in states:
                self.message_user(request, f"{sale} is {self.state(sale)}: it was not {done}.", messages.WARNING)
                continue
            try:
                act(sale.pk)
            except RedisError as error:
                self.message_user(request, f"{sale}: Redis did not answer: {error}", messages.ERROR)
            except lifecycle.NotNow as wait:
                self.message_user(request, f"{sale} was not {done}: {wait}", messages.WARNING)
            else:
                self.message_user(request, f"{sale} is {done}.", messages.SUCCESS)

    @display(description="State", label={"open": "success", "to come": "info"})
    def state(self, sale: Sale) -> str:
        now = timezone.now()
        return "to come" if now < sale.opens_at else "open" if now < sale.closes_at else "over"

    @display(description="Preheated", label={"yes": "success"})
    def preheated(self, sale: Sale) -> str | None:
        return "yes" if sale.preheated_at else None
