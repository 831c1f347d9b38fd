"""What a sale's page shows before any script runs, and what it weighs."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from datetime import timedelta

from playwright.sync_api import expect

from shop.models import Product
from shop.sales import lifecycle
from tests.browser import IN_BROWSER
from tests.factories import OnSale
from tests.shop.browser_support import (
    SAYS,
    Enter,
    browser,
    enter,
    for_each_reader,
    opened,
    port,
    prepared,
    shows,
)
from tests.shop.conftest import buy
from tests.shop.web_server import CHECKOUT

__all__ = ["browser", "enter", "port"]  # the fixtures

STATIC = CHECKOUT / "shop" / "static" / "shop"
MOST_BYTES = 60_000

pytestmark = IN_BROWSER

LEFT = {"en": ("5 left", "Sold out"), "zh-hans": ("剩余 5 件", "售罄")}
NOT_OPEN = {"en": "Not open yet", "zh-hans": "尚未开售"}


@for_each_reader
def test_the_first_view_needs_no_script(enter: Enter, language: str, viewport: dict[str, int]) -> None:
    """Without scripts, the page shows name, price, what is left, and a form that can be used."""
    says, (some, none) = SAYS[language], LEFT[language]
    states: dict[str, Callable[[OnSale], object]] = {
        says["buy"]: lambda _: None,
        says["paused"]: lambda offer: lifecycle.pause(offer.sale),
        says["sold out"]: lambda offer: buy(offer, **dict.fromkeys(offer.products, 5)),
    }
    for label, happens in states.items():
        _, offer, address = prepared()
        happens(offer)
        page = opened(enter(language=language, viewport=viewport, java_script_enabled=False), address)
        expect(page.get_by_role("heading", level=2)).to_have_text("Mechanical keyboard")
        expect(page.locator(".price")).to_have_text("9.90 EUR")
        expect(page.locator(".left")).to_have_text(none if label == says["sold out"] else some)
        button = page.locator(".buying button")
        expect(button).to_have_text(label)
        box = button.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= viewport["height"], "the button is in the first screen"
        button.click(force=True)  # also where it is marked as disabled, because the form decides
        page.wait_for_url(re.compile(r"/account/login/\?next=/sales/.*/buy/"))
    _, _, address = prepared(opens=timedelta(minutes=30))
    page = opened(enter(language=language, viewport=viewport, java_script_enabled=False), address)
    expect(page.locator(".buying button")).to_have_text(NOT_OPEN[language])


def test_the_page_with_its_picture_is_light(enter: Enter) -> None:
    customer, _, address = prepared()
    pictures = sorted((STATIC / "products").glob("*"), key=lambda file: file.stat().st_size)
    if pictures:
        picture = f"/static/shop/products/{pictures[-1].name}"
        Product.objects.update(picture=picture)
    context = enter(customer)
    bodies: dict[str, bytes] = {}
    context.on("requestfinished", lambda request: bodies.setdefault(request.url, request.response().body()))
    page = opened(context, address)
    page.wait_for_load_state("networkidle")
    shows(page, SAYS["en"]["buy"])
    sizes = {re.sub(".*/", "", url) or "page": len(gzip.compress(body)) for url, body in bodies.items()}
    assert {"page", "base.css", "pages.css", "sale.js", "now.json"} <= set(sizes)
    assert sum(sizes.values()) <= MOST_BYTES, sizes
