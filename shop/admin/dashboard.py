"""What the operator sees first: the verdict, the sales, the orders and the locks."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count
from django.http import HttpRequest
from django.utils import timezone
from redis import RedisError

from inventory.models import StockItem
from inventory.strategies import registry
from locking.contrib.django.admin import may_see_locks, most_wanted
from shop.admin.audit import audit
from shop.models import Order, Payment, Sale
from shop.orders import payments

SALES = 10
ASIDE = 10

admin.site.index_template = "shop/dashboard.html"


def context(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add what the person may see, and leave out the rest."""

    def may_see(model: type) -> bool:
        return admin.site.get_model_admin(model).has_view_permission(request)

    context["title"] = "Overview"
    if may_see(StockItem):
        context["audit"] = audit()
    if may_see(Sale):
        context["sales"] = Sale.objects.filter(closes_at__gt=timezone.now()).order_by("opens_at")[:SALES]
        context["now"] = timezone.now()
    if may_see(Order):
        counted = dict(Order.objects.order_by().values_list("state").annotate(Count("pk")))
        context["orders"] = [(state, counted.get(state, 0)) for state in Order.State.values]
        context["queue"] = read_queue()
    if may_see(Payment):
        context["refunds"] = payments.due(Payment.objects.all()).count()
    if may_see_locks(request):
        context["locks"], context["locks_error"] = most_wanted()
        context["waiters"] = sum(lock.waiters for lock in context["locks"])
    return context


def read_queue() -> dict[str, Any]:
    """How many orders are queued, and which were set aside because they cannot be saved."""
    queue = registry.queue()
    try:
        return {"length": len(queue), "aside": queue.aside(ASIDE)}
    except RedisError as error:
        return {"error": f"Redis did not answer: {error}"}
