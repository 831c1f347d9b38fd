"""Buying without JavaScript: a form whose idempotency key is in the page, so that a double post is one order."""

from __future__ import annotations

from uuid import UUID, uuid4

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from inventory.errors import InventoryError
from shop.orders.errors import OrderError
from shop.orders.place import place_order
from shop.pages.page import PageRefused, page
from shop.pages.sales import sale_or_404


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@page
def buy(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask how many of which product; place the order, once for each key."""
    sale = sale_or_404(slug)
    if request.method != "POST":
        return render(request, "shop/pages/buy.html", {"sale": sale, "key": uuid4()})
    try:
        product, quantity = int(request.POST["product"]), int(request.POST["quantity"])
        key = str(UUID(request.POST["key"]))
    except (KeyError, ValueError) as error:
        raise PageRefused(400, _("The form is incomplete. Open the page of the sale again.")) from error
    try:
        placed = place_order(customer=int(str(request.user.pk)), sale=sale.pk, quantities={product: quantity}, key=key)
    except (OrderError, InventoryError) as refused:
        raise PageRefused(409, str(refused), link=f"/sales/{slug}/", label=_("Back to the sale")) from refused
    return redirect("order", placed.order.pk)
