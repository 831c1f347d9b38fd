"""What the sidebar leads to. Each person sees what they may open."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse

from inventory.models import StockItem, StockMovement
from locking.contrib.django.admin import may_see_locks
from shop.models import Order, Payment, Product, Sale

Entry = dict[str, Any]


def navigation(request: HttpRequest) -> list[Entry]:
    """The groups of the sidebar. Settings name this function."""
    return [
        {
            "title": "Tonight",
            "items": [
                {"title": "Overview", "icon": "speed", "link": reverse("admin:index")},
                listed(StockItem, "Stock", "inventory_2"),
                listed(StockMovement, "Movements", "swap_vert"),
                {"title": "Locks", "icon": "lock", "link": reverse("admin_locks"), "permission": may_see_locks},
                listed(Order, "Orders", "receipt_long"),
                listed(Payment, "Payments", "payments"),
            ],
        },
        {
            "title": "What is offered",
            "items": [listed(Sale, "Sales", "bolt"), listed(Product, "Products", "sell")],
        },
        {
            "title": "People",
            "items": [listed(User, "Users", "person"), listed(Group, "Groups", "group")],
        },
    ]


def listed(model: type[Model], title: str, icon: str) -> Entry:
    """The way to the list of a model, for those who may see it."""
    link = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    its_admin = admin.site.get_model_admin(model)
    # A function, not the bound method: unfold copies the navigation, and with a method the whole admin.
    return {
        "title": title,
        "icon": icon,
        "link": link,
        "permission": lambda request: its_admin.has_view_permission(request),
    }
