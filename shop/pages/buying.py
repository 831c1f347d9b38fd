"""Buying without JavaScript: a form that contains the idempotency key, so that posting it twice makes one order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4, uuid5

from django import forms
from django.db import IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import dateformat
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from inventory import errors
from shop import clock
from shop.api.serializers import MAX_ID, MAX_QUANTITY
from shop.api.throttles import OrderRate
from shop.models import Order, Sale, SaleItem
from shop.orders.errors import (
    FewerLeft,
    KeyReused,
    NoGuests,
    OrderError,
    PriceChanged,
    SaleNotOpen,
    SalePaused,
    StillRunning,
    UnknownProduct,
    UnknownSale,
)
from shop.orders.place import place_order
from shop.orders.receipts import Placed, Receipt
from shop.pages.guests import for_customers, is_guest, no_guests
from shop.pages.page import PageRefused, page
from shop.pages.sales import minutes_to_pay, sale_or_404
from shop.pages.waiting import standing_of
from shop.sales import offers
from shop.waiting.errors import NotAdmitted

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.views import APIView

UNANSWERED = (OperationalError, InterfaceError, InternalError, IntegrityError)
"""Errors of Postgres after which the order may or may not be saved. Sending the same key again shows which."""
RETRY = 2
"""Seconds after which the buyer may send the same form again."""


class OrderForm(forms.Form):
    """The form for one product: quantity, and the price and idempotency key of the page that the buyer saw."""

    product = forms.IntegerField(min_value=1, max_value=MAX_ID)
    quantity = forms.IntegerField(min_value=1, max_value=MAX_QUANTITY)
    price = forms.DecimalField(min_value=0, max_digits=10, decimal_places=2)
    key = forms.RegexField(r"\A[0-9a-f-]{32,36}\Z")
    ticket = forms.CharField(required=False)


class FormShownAgain(Exception):
    """The order was not placed, or its result is unknown. So the form is shown again with the same idempotency key.

    Args:
        status: the HTTP status.
        message: what happened and what to do, in the reader's language.
        quantity: a smaller quantity for the form; None to keep the quantity that the buyer entered.
    """

    def __init__(self, status: int, message: str, *, quantity: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.quantity = quantity


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@page
@for_customers
def buy(request: HttpRequest, sale: Sale) -> HttpResponse:
    """Show the order form, or place the order if the form was sent.

    The idempotency key is in the URL of the form. So a buyer who reloads the form or comes back to it sends the same
    key. The session keeps the key until the buyer has seen the order with this key. So a buyer who got no response and
    opens the form again buys only once.

    With JavaScript, the button on the sale's page may have sent an order that has no response yet. `buy.js` then makes
    the form send the key of that order.
    """
    if request.method != "POST":
        items = wanted(request, sale)
        if not sale.guest_checkout and is_guest(request):
            raise no_guests()
        ticket = ticket_of(request, sale)
        if ticket is None:
            return redirect("waiting", sale.slug)
        try:
            key = UUID(request.GET["key"])
        except (KeyError, ValueError):
            query = request.GET.copy()
            query["key"] = request.session.setdefault(kept_key(sale.pk), str(uuid4()))
            return redirect(f"{request.path}?{query.urlencode()}")
        keys = {item.product_id: key_of(key, item.product_id) for item in items}
        return form_page(request, sale, items, keys, quantity=request.GET.get("quantity", "1"), ticket=ticket)
    form = OrderForm(request.POST)
    if not form.is_valid():
        raise PageRefused(
            400,
            _("The form is incomplete, or a number in it is out of range. Fill it in again."),
            link=reverse("buy", args=[sale.slug]),
            label=_("Back to the form"),
        )
    asked = form.cleaned_data
    try:
        placed = place(request, sale, asked)
    except FormShownAgain as again:
        if again.status == 409:
            sale = sale_or_404(sale.slug)  # Prices may have changed since this request read them.
        items = [item for item in sale.items.all() if item.product_id == asked["product"]]
        keys, quantity = {asked["product"]: asked["key"]}, again.quantity or asked["quantity"]
        response = form_page(
            request, sale, items, keys, quantity=quantity, ticket=asked["ticket"], notice=again.message
        )
        response.status_code = again.status
        if again.status in (429, 503):
            response.headers["Retry-After"] = str(RETRY)
        return response
    return redirect("order", placed.order.pk)


def kept_key(sale: int) -> str:
    """Return the name under which the session keeps the idempotency key of a sale's form."""
    return f"key of sale {sale}"


def key_of(form: UUID, product: int) -> str:
    """Return the idempotency key of one product on the form page. The page may have a form for each product.

    Args:
        form: the key in the URL of the page, from which the keys of its products are made.
        product: id of the product.
    """
    return str(uuid5(form, str(product)))


def forget_key(request: HttpRequest, order: Receipt) -> None:
    """Remove the idempotency key of a sale's form from the session, if this order has a key that was made from it.

    The buyer sees the order now, so the next form of this sale gets a new key.

    Args:
        order: the order that the buyer sees.
    """
    kept = request.session.get(kept_key(order.sale))
    if kept is None:
        return
    keys = [key_of(UUID(kept), item.product) for item in order.items]
    if Order.objects.filter(pk=order.pk, key__in=keys).exists():
        del request.session[kept_key(order.sale)]


def wanted(request: HttpRequest, sale: Sale) -> list[SaleItem]:
    """Return the item that the buyer has chosen on the page of the sale; all items if they have chosen none.

    Raises:
        PageRefused: the sale is not open, or does not offer the product.
    """
    now = clock.now()
    refuse = partial(PageRefused, link=reverse("sale", args=[sale.slug]), label=_("To the sale"))
    if now < sale.opens_at:
        opens = f"{dateformat.format(sale.opens_at, _('j M Y, H:i'))} UTC"
        raise refuse(409, _("The sale opens at %(time)s. Come back then.") % {"time": opens})
    if now >= sale.closes_at:
        raise PageRefused(409, _("The sale is over. Look at the other sales."))
    chosen = request.GET.get("product")
    items = sorted(sale.items.all(), key=lambda item: item.pk)
    items = [item for item in items if chosen is None or str(item.product_id) == chosen]
    if not items:
        raise refuse(404, _("The sale does not offer this product. Choose one on the page of the sale."))
    return items


def ticket_of(request: HttpRequest, sale: Sale) -> str | None:
    """Return the buyer's ticket; empty if the sale has no waiting room, None if it is not the buyer's turn.

    Raises:
        PageRefused: this buyer sends too many requests, or Redis does not answer.
    """
    offer = offers.get(sale.pk) if sale.waiting_room else None
    if offer is None or not offer.waiting_room:
        return ""
    return standing_of(request, offer).ticket or None


def form_page(
    request: HttpRequest,
    sale: Sale,
    items: list[SaleItem],
    keys: Mapping[int, str],
    *,
    quantity: Any,
    ticket: str,
    notice: str = "",
) -> HttpResponse:
    """Return the page with a form for each item.

    Args:
        keys: idempotency keys by product id.
        ticket: the buyer's ticket; empty if the sale has no waiting room.
        notice: why the form is shown again.
    """
    rows = [
        {
            "item": item,
            "key": keys[item.product_id],
            "most": item.limit or MAX_QUANTITY,
            "intent": f"{sale.pk}/{request.user.pk}/{item.product_id}",
        }
        for item in items
    ]
    context = {"sale": sale, "rows": rows, "quantity": quantity, "ticket": ticket, "notice": notice}
    return render(request, "shop/pages/buy.html", context)


def place(request: HttpRequest, sale: Sale, asked: dict[str, Any]) -> Placed:
    """Place the order of a form.

    Raises:
        FormShownAgain: the order was refused, or its result is unknown. The buyer may send the same form again.
        PageRefused: the order was refused, and sending the form again does not help.
    """
    product = asked["product"]
    if not OrderRate().allow_request(cast("Request", request), cast("APIView", None)):
        raise FormShownAgain(
            429, _("You have sent many orders in one second. Wait a moment, then press the button again.")
        )
    try:
        return place_order(
            customer=int(cast(int, request.user.pk)),
            sale=sale.pk,
            quantities={product: asked["quantity"]},
            key=asked["key"],
            expected_prices={product: asked["price"]},
            ticket=asked["ticket"],
            guest=not sale.guest_checkout and is_guest(request),
        )
    except (OrderError, errors.InventoryError, NotAdmitted, *UNANSWERED) as refused:
        raise answer_to(refused, sale, product) from refused


def answer_to(refused: Exception, sale: Sale, product: int) -> Exception:
    """Return the exception to raise for a refused order, with a message for the customer."""
    to_sale = partial(PageRefused, link=reverse("sale", args=[sale.slug]), label=_("To the sale"))
    to_orders = partial(PageRefused, link=reverse("orders"), label=_("My orders"))
    match refused:
        case PriceChanged():
            price = f"{refused.items[0].price:.2f} {sale.currency}"
            message = _("The price is now %(price)s. Nothing was bought. Press the button to buy at this price.")
            return FormShownAgain(409, message % {"price": price})
        case errors.SoldOut() if refused.left > 0:
            message = _("Only %(left)s left. Nothing was bought. Order fewer units.")
            return FormShownAgain(409, message % {"left": refused.left}, quantity=refused.left)
        case FewerLeft():
            message = _("Fewer than %(wanted)s are left. Nothing was bought. Order fewer units.")
            return FormShownAgain(409, message % {"wanted": refused.wanted})
        case errors.SoldOut():
            message = _(
                "Sold out. Nothing was bought. Orders that are not paid within %(minutes)s minutes give their units "
                "back: try again then."
            )
            return to_sale(409, message % {"minutes": minutes_to_pay()})
        case errors.OverLimit() if (free := refused.limit - refused.taken) > 0:
            message = _(
                "At most %(limit)s for each customer in this sale; you have bought %(taken)s. Nothing more was bought. "
                "Order fewer units."
            )
            return FormShownAgain(409, message % {"limit": refused.limit, "taken": refused.taken}, quantity=free)
        case errors.OverLimit():
            message = _("At most %(limit)s for each customer in this sale, and you have bought them. See your orders.")
            return to_orders(409, message % {"limit": refused.limit})
        case SalePaused():
            return FormShownAgain(
                409,
                _("The sale is paused. Nothing was bought. Press the button again when it goes on: you buy only once."),
            )
        case SaleNotOpen() | errors.SaleClosed():
            message = _("The sale is not open. Nothing was bought. Its page says when it opens and closes.")
            return to_sale(409, message)
        case NoGuests():
            return no_guests()
        case NotAdmitted():
            message = _("Your turn in the waiting room has not come, or it has ended. Nothing was bought.")
            return PageRefused(403, message, link=reverse("waiting", args=[sale.slug]), label=_("To the waiting room"))
        case StillRunning() | errors.Duplicate():
            return FormShownAgain(
                409, _("The order is being placed. Press the button again in a moment: you buy only once.")
            )
        case KeyReused():
            message = _("This form has placed another order already. Look at your orders before you buy again.")
            return to_orders(422, message)
        case UnknownProduct() | UnknownSale():
            message = _("The sale no longer offers this product. Nothing was bought.")
            return to_sale(409, message)
        case errors.UnknownCustomer():
            return PageRefused(403, _("This account is closed. Nothing was bought."))
        case errors.TryAgain() | OperationalError() | InterfaceError() | InternalError() | IntegrityError():
            return FormShownAgain(503, _("The shop is busy. Press the button again in a moment: you buy only once."))
    return refused
