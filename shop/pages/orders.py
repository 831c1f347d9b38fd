"""The orders of a customer."""

from __future__ import annotations

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from shop.models import Order
from shop.orders.lookup import find_order
from shop.pages.page import PageRefused, page


@require_safe
@login_required
@page
def orders(request: HttpRequest) -> HttpResponse:
    """List the customer's orders, newest first."""
    mine = Order.objects.filter(customer=int(str(request.user.pk))).prefetch_related("items")[:100]
    return render(request, "shop/pages/orders.html", {"orders": mine})


@require_safe
@login_required
@page
def order(request: HttpRequest, order: UUID) -> HttpResponse:
    """Show an order."""
    try:
        found = find_order(order, customer=int(str(request.user.pk)))
    except Order.DoesNotExist as missing:
        raise PageRefused(404, _("You have no such order.")) from missing
    return render(request, "shop/pages/order.html", {"placed": found, "order": found.order})
