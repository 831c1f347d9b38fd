"""The home page, the site's icon, and the choice of a language."""

from __future__ import annotations

from django.conf import settings
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_safe

from shop.models import Sale
from shop.pages import now
from shop.pages.page import page
from shop.pages.sales import running_state
from shop.sales import load_tests

YEAR = 365 * 24 * 3600


@require_safe
@page
def home(request: HttpRequest) -> HttpResponse:
    """Show the home page: the present or next sale, and links for buyers, operators, learners and developers."""
    not_over = load_tests.listed(Sale.objects.filter(closes_at__gt=Now(), items__isnull=False))
    sale = not_over.annotate(read_at=Now()).prefetch_related("items__product").order_by("opens_at", "pk").first()
    if sale is None:
        return render(request, "shop/pages/home.html")
    items = sorted(sale.items.all(), key=lambda item: not item.product.picture)
    state = "coming" if sale.opens_at > sale.read_at else running_state(now.get(sale.slug))
    return render(request, "shop/pages/home.html", {"sale": sale, "item": items[0], "state": state})


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:
    """Redirect /favicon.ico, which browsers request by default, to the icon."""
    return redirect(static("shop/icon.svg"))


@require_safe
def choose_language(request: HttpRequest, code: str) -> HttpResponse:
    """Store the language in a cookie, and redirect to the page on which the reader has chosen it.

    Pages offer this as a link and not as a form: with a form, they would contain a CSRF token, and a proxy could not
    cache them.
    """
    if code not in dict(settings.LANGUAGES):
        raise Http404(f"There is no language {code}.")
    back = request.GET.get("next", "")
    local = url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    response = HttpResponseRedirect(back if local else "/")
    response.set_cookie(
        settings.LANGUAGE_COOKIE_NAME, code, max_age=YEAR, secure=settings.LANGUAGE_COOKIE_SECURE, samesite="Lax"
    )
    return response
