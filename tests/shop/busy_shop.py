"""A shop with some of everything that the admin shows, and the addresses of all pages of the admin."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.test import Client
from django.utils import timezone
from django_redis import get_redis_connection

from inventory import stock
from inventory.models import StockItem, StockMovement
from locking import RedisLock
from shop.management.commands.sample import MIDNIGHT, TONIGHT, SampleProduct, SampleSale
from shop.models import Order, Payment, Product, Refund, Sale, SaleItem, UnmatchedReport
from shop.orders import payments, unmatched
from shop.orders.ending import end_pending
from shop.orders.place import place_order
from shop.orders.returns import return_order
from shop.sales import lifecycle
from shop.sales.preheat import preheat_sale
from tests.factories import OnSale, new_customer
from tests.shop.test_admin_addresses import World

CUSTOMERS = ("frances", "grace", "ken", "margaret", "dennis", "barbara", "linus", "ada")
LOCK = "stock:headphones"


class BusyShop(World):
    """Sales in each phase, orders in each state, refunds, reports, movements, accounts, a held lock and a history."""

    def __init__(self) -> None:
        self.root = User.objects.create_superuser("operator")
        self.client = Client()
        self.client.force_login(self.root)
        tonight = on_offer(TONIGHT, opens=-1)
        coming, over = on_offer(MIDNIGHT, opens=1, closes=3), on_offer(MIDNIGHT, opens=-5, closes=-3)
        paused = on_offer(
            SampleSale("vinyl", "Vinyl before noon", "午前黑胶专场", timedelta(), MIDNIGHT.products[:1]),
            opens=-1,
            closes=0.5,
        )
        Sale.objects.filter(pk=coming.sale).update(waiting_room=True, admitted_per_second=50, guest_checkout=True)
        Sale.objects.filter(pk=over.sale).update(name="The sale of yesterday")
        lifecycle.pause(paused.sale)
        orders = [self._order(tonight, name, headphones=1 + len(name) % 2, keyboard=1) for name in CUSTOMERS]
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
        objects += [UnmatchedReport.objects.get(), Product.objects.get(sku="headphones")]
        objects += [Sale.objects.get(pk=tonight.sale)]
        self.ids = {str(each._meta.model_name): str(each.pk) for each in objects}
        self.content_type = str(ContentType.objects.get_for_model(Sale).pk)
        self._leave_a_history(orders[7])
        self.lease = RedisLock(get_redis_connection("default"), LOCK, ttl=600.0).acquire(timeout=1.0)

    @staticmethod
    def _order(offer: OnSale, name: str, **units: int) -> Order:
        prices = dict(SaleItem.objects.filter(sale=offer.sale).values_list("product", "price"))
        cart = {"quantities": offer.cart(**units), "expected_prices": prices}
        placed = place_order(customer=new_customer(name), sale=offer.sale, key=name, **cart)
        return Order.objects.get(pk=placed.order.pk)

    def _leave_a_history(self, order: Order) -> None:
        """Record an event in the history of some objects, as an operator does."""
        sent: list[tuple[str, dict[str, Any]]] = [
            (f"shop/sale/{self.ids['sale']}/extend/", {"minutes": "10", "shown": self._closes_at()}),
            (f"shop/order/{order.pk}/record-payment/", {"amount": "1.00", "why": "By transfer."}),
            (f"shop/product/{self.ids['product']}/change/", {"name": "Studio headphones", "description": "Closed."}),
        ]
        another = Client()  # This client gets the messages for the operator, so no page of `pages` shows them.
        another.force_login(self.root)
        for path, form in sent:
            assert another.post(f"/admin/{path}", form).status_code == 302, path

    def _closes_at(self) -> str:
        return Sale.objects.get(pk=self.ids["sale"]).closes_at.isoformat()

    def pages(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, path and HTML of each page of the admin, without redirects, files and JSON."""
        for name, _, path in self.requests(("GET",)):
            response = self.client.get(path)
            if response.status_code == 200 and response.headers["Content-Type"].startswith("text/html"):
                yield str(name), path, response.text


def on_offer(sample: SampleSale, *, opens: float, closes: float = 1) -> OnSale:
    """Create a sale of a sample's products, and preheat it if it is open. `opens` and `closes` are hours from now."""
    now = timezone.now()
    sale = Sale.objects.create(
        name=sample.name, opens_at=now + timedelta(hours=opens), closes_at=now + timedelta(hours=closes)
    )
    products = {each.sku: stocked(each) for each in sample.products}
    for each in sample.products:
        SaleItem.objects.create(sale=sale, product=products[each.sku], price=Decimal(each.price), limit=2)
    if opens < 0 < closes:
        preheat_sale(sale.pk)
    return OnSale(sale.pk, {sku: product.pk for sku, product in products.items()})


def stocked(sample: SampleProduct) -> Product:
    product, created = Product.objects.get_or_create(sku=sample.sku, defaults={"name": sample.name})
    if created:
        stock.deliver(sample.sku, sample.units)
    return product
