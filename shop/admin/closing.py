"""Admin actions that preheat and close sales, in the list of sales and on the page of a sale."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action as unfold_action

from shop.admin.checked import CheckedAdmin
from shop.admin.confirming import confirmed_one
from shop.admin.sale_actions import phase, run_on_sales
from shop.models import Sale
from shop.sales import lifecycle
from shop.sales.preheat import preheat_sale

BUTTONS = {"preheat_one": ("to come", "open"), "close_one": ("open",)}
"""For each button, the phases of a sale in which the sale's page shows the button and its action is allowed."""


class ClosingAdmin(CheckedAdmin):
    """The buttons and actions that preheat sales (load their stock) and close them."""

    @admin.action(permissions=["change"], description="Preheat: load the stock for the strategy")
    def preheat(self, request: HttpRequest, queryset: QuerySet[Sale]) -> None:
        run_on_sales(self, request, queryset, preheat_sale, "preheated", phases=BUTTONS["preheat_one"])

    @admin.action(permissions=["change"], description="Close now: take no more orders, unload the stock")
    def close(self, request: HttpRequest, queryset: QuerySet[Sale]) -> None:
        run_on_sales(self, request, queryset, lifecycle.close, "closed", phases=BUTTONS["close_one"])

    @unfold_action(description="Preheat", url_path="preheat", permissions=["change"], icon="local_fire_department")
    def preheat_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for a confirmation, and preheat one sale."""
        text = "The stock of the sale is loaded for its strategy. If it is loaded already, it is loaded again."
        return confirmed_one(self, request, object_id, self.preheat, verb="Preheat", text=text)

    @unfold_action(description="Close now", url_path="close", permissions=["change"], icon="stop_circle")
    def close_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for a confirmation, and close one sale."""
        text = (
            "The sale takes no more orders, and its stock is unloaded. Orders that it has taken are kept: queued ones "
            "are saved, and all of them can be paid. Buyers see that the sale is over."
        )
        return confirmed_one(self, request, object_id, self.close, verb="Close now", text=text)

    def get_actions_detail(self, request: HttpRequest, object_id: Any = None) -> list[Any]:
        """Return the buttons that fit the phase of the sale."""
        # unfold calls this for any id in the URL, also for one that is not a number.
        found = self.get_queryset(request).filter(pk=object_id).first() if str(object_id).isdecimal() else None
        hidden = {name for name, phases in BUTTONS.items() if found is None or phase(found) not in phases}
        names = {f"{self.opts.app_label}_{self.opts.model_name}_{name}" for name in hidden}
        return [each for each in super().get_actions_detail(request, object_id) if each.action_name not in names]
