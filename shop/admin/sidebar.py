"""The sidebar of the admin. Users see only the pages that they may open."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse

from inventory.models import StockItem, StockMovement
from locking.contrib.django.admin import may_see_locks
from shop.models import Order, Payment, Product, Refund, Sale, UnmatchedReport

SidebarItem = dict[str, Any]


def navigation(request: HttpRequest) -> list[SidebarItem]:
    """Return the groups of the sidebar. `UNFOLD` in the settings names this function."""
    return [
        {
            "title": "Operations",
            "items": [
                {"title": "Overview", "icon": "speed", "link": reverse("admin:index")},
                list_of(StockItem, "Stock", "inventory_2"),
                list_of(StockMovement, "Movements", "swap_vert"),
                {"title": "Locks", "icon": "lock", "link": reverse("admin_locks"), "permission": may_see_locks},
                list_of(Order, "Orders", "receipt_long"),
                list_of(Payment, "Payments", "payments"),
                list_of(Refund, "Refunds", "currency_exchange"),
                list_of(UnmatchedReport, "Unmatched reports", "help_center"),
            ],
        },
        {
            "title": "Catalogue",
            "items": [list_of(Sale, "Sales", "bolt"), list_of(Product, "Products", "sell")],
        },
        {
            "title": "People",
            "items": [list_of(User, "Users", "person"), list_of(Group, "Groups", "group")],
        },
    ]


def list_of(model: type[Model], title: str, icon: str) -> SidebarItem:
    """Return the sidebar entry of a model's list. Only users who may view the model see it."""
    link = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    its_admin = admin.site.get_model_admin(model)
    # Do not pass the bound method: unfold deep-copies the navigation, and would copy the whole admin with the method.
    return {
        "title": title,
        "icon": icon,
        "link": link,
        "permission": lambda request: its_admin.has_view_permission(request),
    }
