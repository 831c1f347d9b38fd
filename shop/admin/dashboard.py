"""The overview, the first page of the admin: stock check, sales, orders, money to settle and locks."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count
from django.db.models.functions import Now
from django.http import HttpRequest
from redis import RedisError

from inventory.models import StockItem
from inventory.strategies import registry
from locking.contrib.django.admin import may_see_locks, most_wanted
from shop import clock
from shop.models import Order, Refund, Sale, UnmatchedReport
from shop.orders import unmatched
from shop.overview import document

SALES = 10
DEAD_LETTERS = 10

admin.site.index_template = "shop/dashboard.html"


def context(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add the figures that this user may see to the template context. `UNFOLD` in the settings names this function."""

    def may_see(model: type) -> bool:
        return admin.site.get_model_admin(model).has_view_permission(request)

    context["title"] = "Overview"
    if may_see(StockItem) or may_see(Sale) or may_see(Order):
        context["parts"] = document.parts(request, document.shared())
    if may_see(Sale):
        context["sales"] = Sale.objects.filter(closes_at__gt=Now()).order_by("opens_at")[:SALES]
        context["now"] = clock.now()
    if may_see(Order):
        counted = dict(Order.objects.order_by().values_list("state").annotate(Count("pk")))
        context["orders"] = [(state, counted.get(state, 0)) for state in Order.State.values]
        context["queue"] = read_queue()
    if may_see(Refund):
        context["refunds"] = Refund.objects.filter(sent_at=None).count()
    if may_see(UnmatchedReport):
        context["unmatched"] = unmatched.open_reports(UnmatchedReport.objects.all()).count()
    if may_see_locks(request):
        context["locks"], context["locks_error"] = most_wanted()
        context["waiters"] = sum(lock.waiters for lock in context["locks"])
    return context


def read_queue() -> dict[str, Any]:
    """Return the number of queued orders, the latest dead letters, and the risks of sales that queue orders.

    A dead letter is a queued order that cannot be saved. A risk says why Redis may lose queued orders.
    """
    names = [name for name in registry.NAMES if registry.get(name).queues]
    queueing = Sale.objects.filter(strategy__in=names, closes_at__gt=Now()).exists()
    queue = registry.queue()
    try:
        return {
            "length": len(queue),
            "dead_letters": queue.dead_letters.newest(DEAD_LETTERS),
            "risks": queue.risks() if queueing else [],
        }
    except RedisError as error:
        return {"error": f"Redis does not answer: {error}"}
