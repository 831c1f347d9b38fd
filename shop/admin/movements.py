"""The read-only list of stock movements. Operators add a movement on the page of its stock item."""

from __future__ import annotations

from django.contrib import admin
from unfold.decorators import display

from inventory.models import StockMovement
from shop.admin.read_only import ReadOnlyAdmin, to_the_second

KIND_COLOURS = {"delivered": "success", "corrected": "warning", "returned": "info"}


@admin.register(StockMovement)
class MovementAdmin(ReadOnlyAdmin):
    none_yet = "No movements yet. They appear here when a delivery or correction is saved on the page of a stock item."
    list_display = ("sku", "signed", "kind_label", "why", "by", "moment")
    list_filter = ("kind", "at", ("who", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("who",)
    search_fields = ("item__sku", "why", "who__username")
    search_help_text = "Sku, reason or user"
    fields = ("item", "signed", "kind_label", "why", "by", "moment")

    @display(description="Sku", ordering="item")
    def sku(self, movement: StockMovement) -> str:
        return str(movement.item_id)

    @display(description="Units", ordering="units")
    def signed(self, movement: StockMovement) -> str:
        return f"{movement.units:+}"

    @display(description="Kind", ordering="kind", label=KIND_COLOURS)
    def kind_label(self, movement: StockMovement) -> str:
        return movement.kind

    @display(description="By", ordering="who__username")
    def by(self, movement: StockMovement) -> str:
        return "a program" if movement.who is None else str(movement.who)

    @display(description="When", ordering="at")
    def moment(self, movement: StockMovement) -> str:
        return to_the_second(movement.at)
