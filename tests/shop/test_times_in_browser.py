"""Times on all pages in Chromium: the same form, in the reader's time zone, with the zone, in 24 hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from playwright.sync_api import Page, expect

from shop.models import Sale
from tests.browser import IN_BROWSER
from tests.factories import close_now, new_customer, on_sale
from tests.shop.browser_support import Enter
from tests.shop.conftest import buy
from tests.shop.waiting_support import with_room

TOKYO = timezone(timedelta(hours=9), "GMT+9")
HOUR = timedelta(hours=1)

# The shop runs in this process, so that it notices a closed sale at once.
pytestmark = [*IN_BROWSER, pytest.mark.usefixtures("live_server")]


def in_words(moment: str, language: str, zone: timezone) -> str:
    at = datetime.fromisoformat(moment).astimezone(zone)
    if language == "en":
        month = f"{at:%b}" if zone is UTC else f"{at:%b}".replace("Sep", "Sept")  # Chromium's abbreviation
        return f"{at.day} {month} {at.year}, {at:%H:%M} {at:%Z}"
    return f"{at.year}年{at.month}月{at.day}日 {at:%H:%M} {at:%Z}"


def times_of(page: Page) -> list[tuple[str, str]]:
    """Return the moment and the text of each time on a page."""
    return [(each.get_attribute("datetime") or "", each.inner_text()) for each in page.locator("time:visible").all()]


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_times_have_one_form_on_all_pages(enter: Enter, language: str, *, scripts: bool) -> None:
    """Without scripts, times are in UTC."""
    customer = new_customer()
    over, offer = on_sale({"o": 1}, opens=-2 * HOUR, closes=-HOUR), on_sale({"b": 3}, opens=-HOUR, closes=20 * HOUR)
    coming = with_room(coming=True)
    slug = dict(Sale.objects.values_list("pk", "slug"))
    order = buy(offer, customer, b=1).order.pk
    pages = {
        "/sales/": 3,
        f"/sales/{slug[over.sale]}/": 2,
        f"/sales/{slug[offer.sale]}/": 2,
        f"/sales/{slug[coming.sale]}/": 2,
        f"/waiting/{slug[coming.sale]}/": 1,
        "/orders/": 1,
        f"/orders/{order}/": 3,
        "/": 1,
    }
    page = enter(customer, language, timezone_id="Asia/Tokyo", java_script_enabled=scripts).new_page()
    for address, count in pages.items():
        if address == "/":
            close_now(offer)  # Make the first page show when the next sale opens.
        page.goto(address)
        if scripts and count:
            expect(page.locator("time:visible").first).to_contain_text("GMT+9")
        found = times_of(page)
        zone = TOKYO if scripts else UTC
        assert len(found) == count, address
        assert [words for _, words in found] == [in_words(moment, language, zone) for moment, _ in found], address
