"""The targets of the forms on the order page that pay or cancel an order."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import get_language, gettext, gettext_noop
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from inventory.errors import StockUnavailable
from shop.models import Order
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.errors import NotCancellable, NotPayable, ProviderDecides, StillQueued
from shop.orders.lookup import find_order
from shop.orders.receipts import Receipt
from shop.pages.orders import customer_of, not_found, own_page, paid_at
from shop.pages.page import PageRefused, View
from shop.payments.provider import provider
from shop.payments.request import PaymentRequest

EARLY = gettext_noop("The order is not saved yet. Nothing was changed. Try again when the order is saved.")
REFUSALS: Mapping[type[Exception], str] = {
    StillQueued: EARLY,
    StockUnavailable: EARLY,
    NotCancellable: gettext_noop(
        "The order was already paid, or has ended. Nothing was changed. Its page shows what has happened."
    ),
    NotPayable: gettext_noop("The order has ended, so there is nothing to pay. To buy, order again."),
    ProviderDecides: gettext_noop("This shop has no payment provider yet, so nothing can be paid. Ask its operator."),
}
"""For each error that prevents paying or cancelling: the message for the customer."""


def form_of_order(view: View) -> View:
    """Decorate the target of a form on the order page. A GET, such as after a log-in, redirects to the order page."""

    def answer(request: HttpRequest, order: UUID) -> HttpResponseBase:
        address = reverse("order", args=[order])
        if request.method != "POST":
            return redirect(address)
        try:
            return view(request, order)
        except Order.DoesNotExist as missing:
            raise not_found(_("You have no such order.")) from missing
        except tuple(REFUSALS) as refused:
            message = next(text for kind, text in REFUSALS.items() if isinstance(refused, kind))
            raise PageRefused(409, gettext(message), link=address, label=_("Back to the order")) from refused

    return require_http_methods(["GET", "HEAD", "POST"])(own_page(answer))


@form_of_order
def pay(request: HttpRequest, order: UUID) -> HttpResponse:
    """Redirect the buyer to the page of the payment provider.

    If no provider is connected and `PAY_WITHOUT_PROVIDER` is set, mark the order as paid instead.
    """
    customer = customer_of(request)
    if not paid_at():
        pay_order(order, customer=customer)
        return redirect("order", order)
    found = find_order(order, customer=customer)
    if found.queued:
        raise StillQueued("The order is queued.")
    if found.order.state == Order.State.PAID:
        return redirect("order", order)
    if found.order.state != Order.State.PENDING:
        raise NotPayable(f"The order is {found.order.state}.")
    return HttpResponseRedirect(_page_for(request, found.order))


@form_of_order
def cancel(request: HttpRequest, order: UUID) -> HttpResponse:
    """Cancel a pending order, and redirect to its page."""
    cancel_order(order, customer=customer_of(request))
    return redirect("order", order)


def _page_for(request: HttpRequest, order: Receipt) -> str:
    back = request.build_absolute_uri(f"{reverse('order', args=[order.pk])}?from_provider=1")
    payable_from = order.payable_from or order.created_at
    return provider().page_for(
        PaymentRequest(
            order=order.pk,
            amount=order.total,
            currency=order.currency,
            pay_by=payable_from + timedelta(seconds=settings.ORDER_TTL),
            back=back,
            language=get_language() or settings.LANGUAGE_CODE,
        )
    )
