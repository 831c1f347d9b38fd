"""A shop with some of everything that the admin shows, and the addresses of all pages of the admin."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.test import Client
from django.urls import URLPattern, get_resolver
from django.utils import timezone
from django_redis import get_redis_connection

from inventory import stock
from inventory.models import StockItem, StockMovement
from locking import RedisLock
from shop.models import Order, Payment, Product, Refund, Sale, UnmatchedReport
from shop.orders import payments, unmatched
from shop.orders.ending import end_pending
from shop.orders.returns import return_order
from shop.sales import lifecycle
from tests.factories import new_customer, on_sale
from tests.shop.conftest import buy

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "NONSENSE")
READ_AND_WRITE = {"GET", "POST"}
"""The HTTP methods for which the admin's pages behave differently."""
MODELS = {str(model._meta.model_name) for model in admin.site._registry}
CUSTOMERS = ("frances", "grace", "ken", "margaret", "dennis", "barbara", "linus", "ada")
LOCK = "stock:headphones"


def every(patterns: Any, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield all addresses of the project with their names. Parameters are in angle brackets."""
    for pattern in patterns:
        address = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            yield address, pattern.name
        else:
            yield from every(pattern.url_patterns, address)


ADDRESSES = [(address, name) for address, name in every(get_resolver().url_patterns) if address.startswith("admin/")]


class BusyShop:
    """Sales in each phase, orders in each state, refunds, reports, movements, accounts, a held lock and a history."""

    def __init__(self) -> None:
        self.root = User.objects.create_superuser("operator")
        self.client = Client()
        self.client.force_login(self.root)
        hour = timedelta(hours=1)
        tonight = on_sale({"headphones": 100, "keyboard": 40}, strategy="lua", limit=2)
        coming, paused = on_sale({"lamp": 30}, opens=hour, closes=3 * hour), on_sale({"vinyl": 50}, limit=2)
        on_sale({"camera": 12}, opens=-5 * hour, closes=-3 * hour)
        Sale.objects.filter(pk=coming.sale).update(waiting_room=True, admitted_per_second=50, guest_checkout=True)
        lifecycle.pause(paused.sale)
        for name in CUSTOMERS:
            buy(tonight, new_customer(name), name, headphones=1 + len(name) % 2, keyboard=1)
        orders = list(Order.objects.order_by("pk"))
        for number, order in enumerate(orders[:5]):
            payments.receive_payment(f"pay_{4711 + number}", order=order.pk, amount=order.total)
        payments.receive_payment("pay_4799", order=orders[0].pk, amount=orders[0].total)
        end_pending([orders[5].pk], Order.State.CANCELLED, by=self.root.pk)
        end_pending([orders[6].pk], Order.State.EXPIRED, by=None)
        return_order(orders[1].pk, by=self.root.pk, returned={"headphones": 1})
        return_order(orders[2].pk, by=self.root.pk)
        payments.mark_refunded(Refund.objects.order_by("pk")[0].pk, by=self.root.pk)
        unmatched.record('{"reference":"pay_9","amount":"10.00","currency":"EUR"}', "The order costs 79.00, not 10.00.")
        stock.move("lamp", StockMovement.Kind.CORRECTED, -2, who=self.root.pk, why="Two are broken.")
        group = Group.objects.create(name="Customer service")
        group.permissions.set(Permission.objects.filter(codename__in=["view_order", "change_order"]))
        buyer = orders[7].customer
        User.objects.filter(pk=buyer.pk).update(last_login=timezone.now())
        objects: list[Model] = [StockItem.objects.get(sku="headphones"), StockMovement.objects.latest("pk"), orders[7]]
        objects += [Payment.objects.get(reference="pay_4712"), Refund.objects.latest("pk"), group, buyer]
        objects += [
            UnmatchedReport.objects.get(),
            Product.objects.get(sku="headphones"),
            Sale.objects.get(pk=tonight.sale),
        ]
        self.ids = {str(each._meta.model_name): str(each.pk) for each in objects}
        assert set(self.ids) == MODELS
        assert len(ADDRESSES) > 50
        self.content_type = str(ContentType.objects.get_for_model(Sale).pk)
        self._leave_a_history(orders[7])
        self.lease = RedisLock(get_redis_connection("default"), LOCK, ttl=600.0).acquire(timeout=1.0)

    def _leave_a_history(self, order: Order) -> None:
        """Record an event in the history of some objects, as an operator does."""
        closes_at = Sale.objects.get(pk=self.ids["sale"]).closes_at.isoformat()
        sent: list[tuple[str, dict[str, Any]]] = [
            (f"shop/sale/{self.ids['sale']}/extend/", {"minutes": "10", "shown": closes_at}),
            (f"shop/order/{order.pk}/record-payment/", {"amount": "1.00", "why": "By transfer."}),
            (f"shop/product/{self.ids['product']}/change/", {"name": "Studio headphones", "description": "Closed."}),
        ]
        another = Client()  # This client gets the messages for the operator, so no page of `pages` shows them.
        another.force_login(self.root)
        for path, form in sent:
            assert another.post(f"/admin/{path}", form).status_code == 302, path

    def requests(self, methods: Sequence[str] = METHODS) -> Iterator[tuple[str | None, str, str]]:
        """Yield the name of an address, a method and a path.

        Each method is tried on an existing object. If `methods` has all methods, GET and POST are tried on missing
        objects, too.
        """
        # Delete last, because every other form needs its object.
        for address, name in sorted(ADDRESSES, key=lambda each: "/delete/" in each[0]):
            found = re.search("|".join(sorted(MODELS, key=len, reverse=True)), address)
            known = self.ids[found[0]] if found else self.ids["sale"]
            for method in methods:
                others = ("0", "x") if method in READ_AND_WRITE < set(methods) and "object_id" in address else ()
                for pk in (known, *others):
                    given = {"content_type_id": self.content_type, "url": "nothing/", "object_id": pk, "id": pk}
                    yield name, method, "/" + fill(address, given)

    def pages(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, path and HTML of each page of the admin, without redirects, files and JSON."""
        for name, _, path in self.requests(("GET",)):
            response = self.client.get(path)
            if response.status_code == 200 and response.headers["Content-Type"].startswith("text/html"):
                yield str(name), path, response.text


def fill(address: str, given: Mapping[str, str]) -> str:
    if "app_label" in address:
        return "admin/shop/"
    address = address.replace("(?P<url>.*)$", "<path:url>")
    if address == "admin/autocomplete/":
        address += "?app_label=shop&model_name=saleitem&field_name=product"
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda match: given[match[1]], address)
