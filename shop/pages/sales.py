"""The sales that are open or coming, and the page of one sale. Both are the same for every visitor."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from shop import clock
from shop.models import Sale
from shop.pages.page import PageRefused, page


@require_safe
@page
def sales(request: HttpRequest) -> HttpResponse:
    """List the sales by opening time."""
    found = Sale.objects.prefetch_related("items__product").order_by("opens_at", "pk")
    return render(request, "shop/pages/sales.html", {"sales": found, "now": clock.now()})


@require_safe
@page
def sale(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a sale: its products, when it opens and closes, and the way to buy."""
    return render(request, "shop/pages/sale.html", {"sale": sale_or_404(slug), "now": clock.now()})


def sale_or_404(slug: str) -> Sale:
    found = Sale.objects.filter(slug=slug).prefetch_related("items__product").first()
    if found is None:
        raise PageRefused(404, _("There is no sale of this name."))
    return found
