"""The pages of a customer's orders: the list, and the page of one order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import get_language, gettext_lazy, ngettext
from django.utils.translation import gettext as _
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from inventory.errors import StockUnavailable
from shop import clock
from shop.accounts import guests
from shop.models import Ending, Order, OrderItem, Payment, Product, Sale
from shop.orders.errors import StillQueued
from shop.orders.lookup import LOST, find_order
from shop.orders.receipts import Placed, Receipt, ReceiptItem
from shop.pages.buying import forget_key
from shop.pages.page import PageRefused, View, page
from shop.pages.reasons import in_words
from shop.pages.timeline import timeline
from shop.payments.provider import provider
from shop.runtime import csp

PAGE_SIZE = 20
POLL_SECONDS = 2
"""Seconds after which the order page polls again, while the order is about to change."""
STATES = {
    "queued": gettext_lazy("In the queue"),
    "pending": gettext_lazy("Not paid yet"),
    "paid": gettext_lazy("Paid"),
    "cancelled": gettext_lazy("Cancelled"),
    "expired": gettext_lazy("Expired"),
    "rejected": gettext_lazy("Rejected"),
    "refunded": gettext_lazy("Refunded"),
}


def own_page(view: View) -> View:
    """Decorate a view that needs a log-in and must not be cached."""
    # Put `login_required` inside `page`: `login_required` reads the session, and `page` handles errors of Postgres.
    return cache_control(private=True, no_store=True)(page(login_required(view)))


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """The time that is left to pay an order.

    Args:
        until: when the time ends.
        milliseconds: the time left by Postgres's clock; 0 if it is over.
    """

    until: datetime
    milliseconds: int

    @property
    def text(self) -> str:
        """The time left in words, in hours or minutes."""
        hours, minutes = divmod(self.milliseconds // 60_000, 60)
        if hours:
            return ngettext("%(hours)d hour left to pay", "%(hours)d hours left to pay", hours) % {"hours": hours}
        if minutes:
            return ngettext("%(minutes)d minute left to pay", "%(minutes)d minutes left to pay", minutes) % {
                "minutes": minutes
            }
        return _("less than a minute left to pay") if self.milliseconds else _("the time to pay is over")


def time_left(payable_from: datetime, now: datetime) -> TimeLeft:
    """Return the time left to pay a pending order."""
    until = payable_from + timedelta(seconds=settings.ORDER_TTL)
    return TimeLeft(until, max(0, int((until - now).total_seconds() * 1000)))


@require_safe
@own_page
def orders(request: HttpRequest) -> HttpResponse:
    """List the customer's orders, newest first."""
    items = Prefetch("items", OrderItem.objects.select_related("product"))
    mine = Order.objects.filter(customer=customer_of(request)).select_related("sale").prefetch_related(items)
    if before := request.GET.get("before"):
        try:
            mine = mine.filter(pk__lt=UUID(before))
        except ValueError as error:
            raise not_found(_("There is no such page of your orders.")) from error
    found = list(mine.order_by("-pk")[: PAGE_SIZE + 1])
    now = clock.now()
    rows = [
        {
            "order": each,
            "state": STATES[each.state],
            "left": time_left(each.payable_from, now) if each.state == Order.State.PENDING else None,
        }
        for each in found[:PAGE_SIZE]
    ]
    older = found[PAGE_SIZE - 1].pk if len(found) > PAGE_SIZE else None
    return render(request, "shop/pages/orders.html", {"rows": rows, "older": older, "newest": not before})


@require_safe
@own_page
def order(request: HttpRequest, order: UUID) -> HttpResponse:
    """Show an order: its timeline, what its state means, and what to do next."""
    try:
        placed = find_order(order, customer=customer_of(request))
    except Order.DoesNotExist as missing:
        raise not_found(_("You have no such order.")) from missing
    except StillQueued:
        return render(request, "shop/pages/order_sought.html", {"order": order, "poll": POLL_SECONDS})
    except StockUnavailable as away:
        raise PageRefused(
            503,
            _("A server that knows your order does not answer. Nothing is lost: open this page again in a moment."),
            retry_after=POLL_SECONDS,
        ) from away
    if placed.order.pk != order:  # The order repeats an earlier order with the same key: show the earlier order.
        return redirect("order", placed.order.pk)
    forget_key(request, placed.order)
    context = {
        **about(placed, from_provider="from_provider" in request.GET),
        "guest": guests.guest_of(customer_of(request)),
    }
    response = render(request, "shop/pages/order.html", context)
    if origin := paid_at():
        response[csp.HEADER] = csp.with_forms_to(origin)
    return response


def about(placed: Placed, *, from_provider: bool) -> dict[str, Any]:
    """Return the template context of the order page.

    Args:
        from_provider: whether the buyer has just come back from the payment provider. Its report may arrive soon.
    """
    receipt = in_reader_language(placed.order)
    placed = replace(placed, order=receipt)
    state = "queued" if placed.queued else "lost" if receipt.reason == LOST else receipt.state
    payments = Payment.objects.filter(order=receipt.pk).prefetch_related("refunds").order_by("received_at", "pk")
    left = None
    if state == Order.State.PENDING and receipt.payable_from is not None:
        left = time_left(receipt.payable_from, clock.now())
    over = left is not None and not left.milliseconds
    waits = state == "queued" or over or (from_provider and state == Order.State.PENDING)
    ending = Ending.objects.filter(order=receipt.pk).select_related("order").first()
    events = timeline(placed, list(payments), ending)
    items = [{"item": item, "sum": item.price * item.quantity} for item in receipt.items]
    return {
        "order": receipt,
        "sale": Sale.objects.filter(pk=receipt.sale).first(),
        "items": items,
        "some_returned": any(item.returned for item in receipt.items),
        "state": state,
        "word": STATES.get(state, ""),
        "place": placed.place,
        "left": left,
        "over": over,
        "from_provider": from_provider,
        "reason": in_words(receipt.reason, {item.sku: item.name for item in receipt.items}),
        "events": events,
        "payable": bool(paid_at()) or by_word(),
        "by_word": by_word(),
        "poll": POLL_SECONDS if waits else 0,
        "version": f"{state} {placed.place} {over} {len(events)}",
    }


def in_reader_language(receipt: Receipt) -> Receipt:
    """Return a receipt with the names of its products in the language of the page.

    If a product was renamed after the order, the receipt keeps the name at the time of the order.
    """
    if get_language() != "zh-hans":
        return receipt
    products = {
        product.sku: product for product in Product.objects.filter(sku__in=[item.sku for item in receipt.items])
    }

    def shown(item: ReceiptItem) -> ReceiptItem:
        product = products.get(item.sku)
        return replace(item, name=product.shown_name) if product is not None and product.name == item.name else item

    return replace(receipt, items=tuple(map(shown, receipt.items)))


def by_word() -> bool:
    """Return whether customers may mark their own orders as paid. This is only possible without a payment provider."""
    return settings.PAY_WITHOUT_PROVIDER and not provider().connected


def paid_at() -> str:
    """Return the origin of the provider's page where buyers pay; empty if no connected provider has such a page."""
    chosen = provider()
    return chosen.origin if chosen.connected else ""


def customer_of(request: HttpRequest) -> int:
    """Return the id of the logged-in user."""
    return int(str(request.user.pk))


def not_found(message: str) -> PageRefused:
    """Return the refusal of a page that does not exist, with a link to the list of orders."""
    return PageRefused(404, message, link=reverse("orders"), label=_("My orders"))
