"""`manage.py sample`: create sample products, sales and accounts, to try the shop."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from inventory import stock
from inventory.models import StockItem
from inventory.strategies import registry
from shop import clock
from shop.models import Product, Sale, SaleItem
from shop.sales.preheat import CannotPreheat, preheat_sale


@dataclass(frozen=True)
class SampleProduct:
    """A sample product. Its picture is in shop/static/shop/products/."""

    sku: str
    name: str
    name_zh: str
    price: str
    units: int
    description: str
    description_zh: str

    @property
    def picture(self) -> str:
        return f"/static/shop/products/{self.sku}.svg"


@dataclass(frozen=True)
class SampleSale:
    """A sample sale.

    Args:
        wait: time between the creation of the sale and its opening.
    """

    slug: str
    name: str
    name_zh: str
    wait: timedelta
    products: Sequence[SampleProduct]


TONIGHT = SampleSale(
    "tonight",
    "Tonight only",
    "今晚限定",
    timedelta(),
    (
        SampleProduct(
            "headphones",
            "Studio headphones",
            "录音室监听耳机",
            "79.00",
            100,
            "Closed headphones with leather cushions and a cable that comes off. Made for long evenings.",
            "封闭式设计，皮质耳垫，耳机线可拆卸。陪你度过漫漫长夜。",
        ),
        SampleProduct(
            "keyboard",
            "Mechanical keyboard",
            "机械键盘",
            "59.90",
            40,
            "75 keys in two tones, with quiet switches and an aluminium case.",
            "75 键，双色键帽，静音轴体，铝合金外壳。",
        ),
        SampleProduct(
            "poster",
            "Signed poster, numbered",
            "签名海报（限量编号）",
            "15.00",
            1,
            "A screen print in six colours, framed and signed. There is one, so one customer gets it.",
            "六色丝网印刷，亲笔签名，已装框。仅此一张，只有一位买家能得到它。",
        ),
    ),
)
MIDNIGHT = SampleSale(
    "midnight",
    "The midnight sale",
    "午夜抢购",
    timedelta(minutes=2),
    (
        SampleProduct(
            "lamp",
            "Brass desk lamp",
            "黄铜台灯",
            "89.00",
            30,
            "A reading lamp with a joint that stays where it is put. Warm light, dimmable.",
            "阅读台灯，灯臂可随意调节，停在哪里都稳稳当当。暖光，亮度可调。",
        ),
        SampleProduct(
            "camera",
            "Instant camera",
            "拍立得相机",
            "119.00",
            12,
            "Prints each picture in a minute. Refurbished and tested, with a film for eight pictures.",
            "每张照片一分钟即可成像。翻新机，经过检测，附赠一盒相纸（8 张）。",
        ),
        SampleProduct(
            "record",
            "Moonrise, vinyl LP",
            "《月升》黑胶唱片",
            "24.00",
            50,
            "Eight pieces for piano on heavy vinyl, in a sleeve with a printed lining.",
            "收录八首钢琴曲，厚盘黑胶压制，封套内有印花衬里。",
        ),
    ),
)


class Command(BaseCommand):
    help = (
        "Create six products with stock, a sale that is open, another one that opens two minutes later, an "
        "administrator and a customer. Each sale lasts a day, or until the next sale of its products. Existing data is "
        "kept, but the two passwords are set again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--password", default="", help="password of `admin` and `buyer` (a random one)")
        parser.add_argument(
            "--strategy",
            default=registry.DEFAULT,
            choices=registry.NAMES,
            help=f"strategy of the sales ({registry.DEFAULT})",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        password = options["password"] or secrets.token_hex(8)
        make_account("admin", password, staff=True)
        make_account("buyer", password, staff=False)
        for sample in (TONIGHT, MIDNIGHT):
            products = [stocked_product(each) for each in sample.products]
            sale = current_sale(products) or new_sale(sample, products, options["strategy"])
            try:
                preheat_sale(sale.pk)
            except CannotPreheat as error:
                raise CommandError(f"The stock of sale {sale.pk} was not loaded: {error}", returncode=2) from error
            opens = "is open" if sale.opens_at <= clock.now() else f"opens at {sale.opens_at:%H:%M:%S} UTC, and is open"
            self.stdout.write(f"Sale {sale.pk}, “{sale.name}”, {opens} until {sale.closes_at:%Y-%m-%d %H:%M} UTC.")
            for product in products:
                self.stdout.write(f"  product {product.pk}: {product.name}")
        self.stdout.write(f"Log in as admin or buyer with the password {password}")


def stocked_product(sample: SampleProduct) -> Product:
    """Return the product with the sku of the sample. Create it and its stock if they do not exist."""
    names = {"name": sample.name, "name_zh": sample.name_zh}
    descriptions = {"description": sample.description, "description_zh": sample.description_zh}
    texts = {**names, **descriptions, "picture": sample.picture}
    product, _ = Product.objects.get_or_create(sku=sample.sku, defaults=texts)
    if not StockItem.objects.filter(sku=sample.sku).exists():
        stock.deliver(sample.sku, sample.units)
    return product


def current_sale(products: Sequence[Product]) -> Sale | None:
    """Return a sale of these products that is open now, or else one that opens within two minutes."""
    soon = clock.now() + MIDNIGHT.wait
    not_over = Sale.objects.filter(items__product__in=products, opens_at__lte=soon, closes_at__gt=clock.now())
    return not_over.order_by("opens_at", "pk").first()


def new_sale(sample: SampleSale, products: Sequence[Product], strategy: str) -> Sale:
    """Create a sale that lasts one day, or until the next sale of these products opens."""
    opens_at = clock.now() + sample.wait
    closes_at = end_of_sale(products, opens_at)
    sale = Sale.objects.create(
        name=sample.name,
        name_zh=sample.name_zh,
        slug=free_slug(sample.slug),
        opens_at=opens_at,
        closes_at=closes_at,
        strategy=strategy,
    )
    SaleItem.objects.bulk_create(
        SaleItem(sale=sale, product=product, price=Decimal(each.price), limit=2)
        for product, each in zip(products, sample.products, strict=True)
    )
    return sale


def end_of_sale(products: Sequence[Product], opens_at: datetime) -> datetime:
    closes_at = opens_at + timedelta(days=1)
    next_sales = Sale.objects.filter(products__in=products, opens_at__gt=opens_at, opens_at__lt=closes_at)
    next_sale = next_sales.order_by("opens_at").first()
    return next_sale.opens_at if next_sale is not None else closes_at


def free_slug(slug: str) -> str:
    """Return the slug if no sale has it; otherwise the first free one of slug-2, slug-3, …"""
    numbered = (slug if number == 1 else f"{slug}-{number}" for number in count(1))
    return next(each for each in numbered if not Sale.objects.filter(slug=each).exists())


def make_account(name: str, password: str, *, staff: bool) -> None:
    user, _ = User.objects.get_or_create(username=name, defaults={"is_staff": staff, "is_superuser": staff})
    user.set_password(password)
    user.save(update_fields=["password"])
