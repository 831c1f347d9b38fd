"""`manage.py sample`: create sample data to try the shop."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandParser

from inventory import stock
from inventory.models import StockItem
from inventory.strategies import registry
from shop import clock
from shop.models import Product, Sale, SaleItem
from shop.sales.preheat import preheat_sale

CATALOGUE = (
    ("headphones", "Studio headphones", "79.00", 100),
    ("keyboard", "Mechanical keyboard", "59.90", 40),
    ("poster", "Signed poster, numbered", "15.00", 1),
)


class Command(BaseCommand):
    help = (
        "Create three products with stock, a sale that is open for a day or until the next sale of these products, "
        "an administrator and a customer. Existing data is kept, but the two passwords are set again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--password", default="", help="password of `admin` and `buyer` (a random one)")
        parser.add_argument(
            "--strategy", default="guarded-update", choices=registry.NAMES, help="strategy of the sale (guarded-update)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        password = options["password"] or secrets.token_hex(8)
        make_account("admin", password, staff=True)
        make_account("buyer", password, staff=False)
        products = []
        for sku, name, _, units in CATALOGUE:
            product, _ = Product.objects.get_or_create(sku=sku, defaults={"name": name})
            products.append(product)
            if not StockItem.objects.filter(sku=sku).exists():
                stock.deliver(sku, units)
        now = clock.now()
        selling = Sale.objects.filter(items__product__in=products, opens_at__lte=now, closes_at__gt=now)
        sale = selling.order_by("opens_at", "pk").first()
        if sale is None:
            sale = open_sale(products, options["strategy"])
        preheat_sale(sale.pk)
        self.stdout.write(f"Sale {sale.pk}, “{sale.name}”, is open until {sale.closes_at:%Y-%m-%d %H:%M} UTC.")
        for product in products:
            self.stdout.write(f"  product {product.pk}: {product.name}")
        self.stdout.write(f"Log in as admin or buyer with the password {password}")


def open_sale(products: Sequence[Product], strategy: str) -> Sale:
    """Open a sale for a day, or until the next sale of these products."""
    now = clock.now()
    closes_at = now + timedelta(days=1)
    next_sales = Sale.objects.filter(products__in=products, opens_at__gt=now, opens_at__lt=closes_at)
    if (next_sale := next_sales.order_by("opens_at").first()) is not None:
        closes_at = next_sale.opens_at
    sale = Sale.objects.create(name="Tonight only", opens_at=now, closes_at=closes_at, strategy=strategy)
    SaleItem.objects.bulk_create(
        SaleItem(sale=sale, product=product, price=Decimal(price), limit=2)
        for product, (_, _, price, _) in zip(products, CATALOGUE, strict=True)
    )
    return sale


def make_account(name: str, password: str, *, staff: bool) -> None:
    user, _ = User.objects.get_or_create(username=name, defaults={"is_staff": staff, "is_superuser": staff})
    user.set_password(password)
    user.save(update_fields=["password"])
