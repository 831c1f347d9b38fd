"""The admin pages of stock: the figures of each sku in Postgres and Redis, and the form that adds movements."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db import DatabaseError, transaction
from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Abs, Coalesce
from django.http import HttpRequest
from redis import RedisError
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from inventory import stock
from inventory.audit import Figures
from inventory.models import StockItem, StockMovement
from inventory.stock import all_on_hand
from inventory.strategies import registry
from shop.admin.checked import CheckedAdmin
from shop.models import Order, OrderItem, Product
from shop.overview.stock_report import stock_report
from shop.sold import saved

MAX_UNITS = 1_000_000
LATEST = 20


class MovementForm(forms.ModelForm):
    """The form that adds a movement to the stock of a sku.

    It adds or subtracts units and never overwrites a figure, so operators can use it while the shop is selling.
    """

    kind = forms.ChoiceField(
        choices=StockMovement.Kind.choices,
        initial=StockMovement.Kind.DELIVERED,
        widget=UnfoldAdminSelectWidget,
        help_text="Use a correction to make the figures agree with a count.",
    )
    units = forms.IntegerField(
        min_value=-MAX_UNITS,
        max_value=MAX_UNITS,
        required=False,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Added to received and on hand. A correction may be negative. Leave empty for no movement.",
    )
    why = forms.CharField(
        max_length=200,
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Required for every movement, for example the number of the delivery note.",
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
        """Refuse a movement that `stock.move` would refuse, and a form that was opened before the last movement."""
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        units, kind = cleaned.get("units"), cleaned["kind"]
        if units is None:
            if cleaned.get("why"):
                self.add_error("units", "Enter the number of units.")
            return cleaned
        if units == 0 or (units < 0 and kind != StockMovement.Kind.CORRECTED):
            self.add_error("units", "Enter a number other than 0. Only a correction may be negative.")
        if not cleaned.get("why"):
            self.add_error("why", "Enter a reason.")
        # A correction takes units from the stock row only. If this row has too few units, `merge` moves the units of
        # segments and unit rows to it. Lock the row until the movement is committed. So if a form is sent twice, the
        # second form waits, finds that the stock has changed, and is refused.
        stock.merge(self.instance.pk, -units)
        row = StockItem.objects.select_for_update().filter(pk=self.instance.pk).first()
        self.refuse_if_moved_since(row, cleaned.get("received_before"))
        if units < -(free := row.on_hand if row else 0):
            self.add_error("units", f"Only {free} on hand. A correction cannot remove more.")
        return cleaned

    def refuse_if_moved_since(self, row: StockItem | None, before: int | None) -> None:
        if row is not None and before is not None and row.received != before:
            self.data = {**self.data.dict(), "received_before": row.received}  # type: ignore[attr-defined]
            raise forms.ValidationError(
                "The stock has changed since this page was opened; perhaps the form was sent twice. Nothing was moved "
                "now. Check the figures and save again if a movement is still missing."
            )


@admin.register(StockItem)
class StockAdmin(CheckedAdmin):
    """The admin page of stock items. The drift of a sku is received - on hand - sold, and must be 0."""

    none_yet = "No stock yet. Add the first delivery of a sku."
    form = MovementForm
    list_display = ("sku", "all_received", "all_on_hand", "in_redis", "sold", "drift", "verdict")
    list_before_template = "shop/verdict_of_list.html"
    change_form_outer_after_template = "shop/movements.html"
    search_fields = ("sku",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[StockItem]:
        # Read all figures in one statement, so that they belong to the same moment while the shop is selling.
        sold = OrderItem.objects.filter(product=OuterRef("pk"), order__state__in=Order.STANDING)
        units = sold.order_by().values("product").annotate(units=Sum(F("quantity") - F("returned"))).values("units")
        moved = StockMovement.objects.filter(item=OuterRef("pk")).order_by().values("item").annotate(sum=Sum("units"))
        return (
            super()
            .get_queryset(request)
            .annotate(
                received_units=Coalesce(Subquery(moved.values("sum")), 0),
                on_hand_units=all_on_hand(),
                sold_units=Coalesce(Subquery(units), 0),
            )
        )

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist: Any = super().get_changelist_instance(request)
        changelist.report = stock_report()
        for item in changelist.result_list:
            item.counter = changelist.report.counters.get(item.sku)
        return changelist

    def get_fields(self, request: HttpRequest, obj: StockItem | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("sku", "kind", "units", "why")
        shown = self.get_readonly_fields(request, obj)
        if not self.has_change_permission(request, obj):
            return shown
        return (*shown, "kind", "units", "why", "received_before")

    def get_readonly_fields(self, request: HttpRequest, obj: StockItem | None = None) -> tuple[str, ...]:
        return ("sku", "all_received", "all_on_hand", "sold", "drift") if obj else ()

    def save_model(self, request: HttpRequest, obj: StockItem, form: Any, change: bool) -> None:  # noqa: FBT001
        if form.cleaned_data.get("units"):
            data = form.cleaned_data
            stock.move(obj.sku, StockMovement.Kind(data["kind"]), data["units"], who=request.user.pk, why=data["why"])
            transaction.on_commit(lambda: self.refresh_redis(request, obj.sku))
        elif not change:
            StockItem.objects.get_or_create(sku=obj.sku)
        if not Product.objects.filter(sku=obj.sku).exists():
            warning = f"No product has the sku {obj.sku}. Add one, or this stock cannot be sold."
            self.message_user(request, warning, messages.WARNING)

    def refresh_redis(self, request: HttpRequest, sku: str) -> None:
        try:
            registry.refresh([sku], saved)
        except RedisError as error:
            warning = f"The movement is saved, but Redis does not answer, so the counter of {sku} may be wrong: {error}"
            self.message_user(request, warning, messages.WARNING)
        except DatabaseError as error:
            warning = (
                f"The movement is saved, but the counter of {sku} in Redis may be wrong until it is reconciled. "
                f"Postgres reports: {error}"
            )
            self.message_user(request, warning, messages.WARNING)

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:  # noqa: FBT001, FBT002
        if units := form.cleaned_data.get("units"):
            return f"{StockMovement.Kind(form.cleaned_data['kind']).label} {units}."
        return super().construct_change_message(request, form, formsets, add)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if (obj := kwargs.get("obj")) is not None and admin.site.get_model_admin(StockMovement).has_view_permission(
            request
        ):
            context["movements"] = obj.movements.select_related("who")[:LATEST]
        return super().render_change_form(request, context, *args, **kwargs)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="In Redis", label={"agrees": "success", "differs": "warning"})
    def in_redis(self, item: Any) -> tuple[str, str] | None:
        if item.counter is None:
            return None
        reserved = f" + {item.counter.reserved} reserved" if item.counter.reserved else ""
        return "differs" if item.counter.drift else "agrees", f"{item.counter.left}{reserved}"

    @display(description="Received", ordering="received_units")
    def all_received(self, item: Any) -> int:
        return item.received_units

    @display(description="On hand", ordering="on_hand_units")
    def all_on_hand(self, item: Any) -> int:
        return item.on_hand_units

    @display(description="Sold", ordering="sold_units")
    def sold(self, item: Any) -> int:
        return item.sold_units

    @display(description="Drift", ordering=Abs(F("received_units") - F("on_hand_units") - F("sold_units")))
    def drift(self, item: Any) -> int:
        return figures_of(item).drift

    @display(description="Verdict", label={"conserved": "success", "broken": "danger"})
    def verdict(self, item: Any) -> str:
        return "conserved" if figures_of(item).conserved else "broken"


def figures_of(item: Any) -> Figures:
    unexplained = item.received - item.received_units
    return Figures(item.sku, item.received_units, item.on_hand_units, item.sold_units, unexplained)
