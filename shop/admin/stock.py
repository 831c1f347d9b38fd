"""Stock: each sku as the tables and Redis have it, and the deliveries that add to it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db import transaction
from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Abs, Coalesce
from django.http import HttpRequest
from redis import RedisError
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from inventory import stock, strategies
from inventory.audit import Figures
from inventory.models import StockItem
from inventory.stock import all_on_hand
from shop.admin.audit import audit
from shop.models import Order, OrderItem
from shop.saving import saved


class DeliveryForm(forms.ModelForm):
    """Stock is not overwritten: what arrives is added to it, also while it is being sold."""

    delivered = forms.IntegerField(
        min_value=1,
        max_value=1_000_000,
        required=False,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Units that have arrived now. They are added to what is received and on hand.",
    )
    received_before = forms.IntegerField(required=False, widget=forms.HiddenInput)

    class Meta:
        model = StockItem
        fields = ("sku",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "received_before" in self.fields:
            self.fields["received_before"].initial = self.instance.received

    def clean(self) -> dict[str, Any]:
        """Refuse a form that was sent twice, or filled in before another delivery was known."""
        cleaned = super().clean() or {}
        before = cleaned.get("received_before")
        if cleaned.get("delivered") and before is not None:
            # The row is locked until the delivery is committed: of two equal forms only one finds what it expects.
            received = StockItem.objects.select_for_update().get(pk=self.instance.pk).received
            if received != before:
                self.data = {**self.data.dict(), "received_before": received}  # type: ignore[attr-defined]
                raise forms.ValidationError(
                    "Something was delivered since this page was opened, perhaps by sending it twice. Nothing was "
                    "added now: look at the figures, and save again what is still missing."
                )
        return cleaned


@admin.register(StockItem)
class StockAdmin(ModelAdmin):
    """Each sku as the tables and Redis have it: received = on hand + sold, or there is drift."""

    form = DeliveryForm
    list_display = ("sku", "received", "all_on_hand", "in_redis", "sold", "drift", "verdict")
    list_before_template = "shop/verdict_of_list.html"
    search_fields = ("sku",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[StockItem]:
        # One statement, so on hand and sold are of one moment, also while the shop is selling.
        sold = OrderItem.objects.filter(product=OuterRef("pk"), order__state__in=Order.STANDING)
        units = sold.order_by().values("product").annotate(units=Sum("quantity")).values("units")
        return (
            super().get_queryset(request).annotate(sold_units=Coalesce(Subquery(units), 0), on_hand_units=all_on_hand())
        )

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist: Any = super().get_changelist_instance(request)
        changelist.audit = audit()
        for item in changelist.result_list:
            item.counter = changelist.audit.counters.get(item.sku)
        return changelist

    def get_fields(self, request: HttpRequest, obj: StockItem | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("sku", "delivered")
        shown = self.get_readonly_fields(request, obj)
        return (*shown, "delivered", "received_before") if self.has_change_permission(request, obj) else shown

    def get_readonly_fields(self, request: HttpRequest, obj: StockItem | None = None) -> tuple[str, ...]:
        return ("sku", "received", "all_on_hand", "sold", "drift") if obj else ()

    def save_model(self, request: HttpRequest, obj: StockItem, form: Any, change: bool) -> None:  # noqa: FBT001
        delivered = form.cleaned_data.get("delivered")
        if delivered:
            stock.deliver(obj.sku, delivered, who=request.user.pk)
            transaction.on_commit(lambda: self.tell_redis(request, obj.sku))
        elif not change:
            StockItem.objects.get_or_create(sku=obj.sku)

    def tell_redis(self, request: HttpRequest, sku: str) -> None:
        try:
            strategies.refresh([sku], saved)
        except RedisError as error:
            warning = f"It is in the tables. Redis did not answer, so the counter of {sku} may be wrong: {error}"
            self.message_user(request, warning, messages.WARNING)

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:  # noqa: FBT001, FBT002
        delivered = form.cleaned_data.get("delivered")
        return (
            f"Delivered {delivered}." if delivered else super().construct_change_message(request, form, formsets, add)
        )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="In Redis", label={"agrees": "success", "differs": "warning"})
    def in_redis(self, item: Any) -> tuple[str, str] | None:
        if item.counter is None:
            return None
        reserved = f" + {item.counter.reserved} reserved" if item.counter.reserved else ""
        return "differs" if item.counter.drift else "agrees", f"{item.counter.left}{reserved}"

    @display(description="On hand", ordering="on_hand_units")
    def all_on_hand(self, item: Any) -> int:
        return item.on_hand_units

    @display(description="Sold", ordering="sold_units")
    def sold(self, item: Any) -> int:
        return item.sold_units

    @display(description="Drift", ordering=Abs(F("received") - F("on_hand_units") - F("sold_units")))
    def drift(self, item: Any) -> int:
        return figures_of(item).drift

    @display(description="Verdict", label={"conserved": "success", "broken": "danger"})
    def verdict(self, item: Any) -> str:
        return "conserved" if figures_of(item).conserved else "broken"


def figures_of(item: Any) -> Figures:
    return Figures(item.sku, item.received, item.on_hand_units, item.sold_units)
