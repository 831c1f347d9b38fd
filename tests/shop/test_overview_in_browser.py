"""The overview in Chromium: an open page follows the sale until its tab is hidden."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, Route, expect

from shop.sales import lifecycle
from tests.browser import IN_BROWSER
from tests.docs.pages import exists
from tests.factories import on_sale
from tests.locking.proxy import Proxy
from tests.shop.browser_support import Enter, opened, requests_of
from tests.shop.conftest import buy
from tests.shop.test_overview import SCRIPT, fresh
from tests.shop.test_silent_postgres import proxy, url
from tests.shop.web_server import web_server

__all__ = ["fresh", "proxy"]

# The shop runs in this process, so that it notices a change at once.
pytestmark = [*IN_BROWSER, pytest.mark.usefixtures("live_server")]

STAMPED = """
window.shownAt = {};
new MutationObserver(() => {
  const text = document.querySelector("[data-part=sales] .live-row")?.innerText.replace(/\\s+/g, " ");
  if (text) window.shownAt[text.slice(0, 13)] ??= Date.now();
}).observe(document, { childList: true, subtree: true });
"""
"""Notes when the page has first shown each "Sold 1 Left 2", in milliseconds since 1970."""

LAST_POINTS = """
Chart.getChart(document.querySelector("canvas[id^=curve]")).data.datasets.map((set) => set.data.at(-1))
"""
"""The units sold and left at the right end of the curve, as Chart.js has drawn them."""

UNITS = 9


@pytest.fixture
def operator(db: None) -> int:
    return int(User.objects.create_superuser("root").pk)


def test_an_open_overview_follows_the_sale_until_its_tab_is_hidden(enter: Enter, operator: int) -> None:
    """A tab shows within 2 s what has changed, and sends nothing while it is hidden.

    Negative controls, at the same time: a tab that asks every minute is later, and the visible tab goes on asking.
    """
    offer = on_sale({"a": UNITS})
    context = enter(operator)
    context.add_init_script(STAMPED)

    def tab(script: str = SCRIPT) -> tuple[Page, list[str]]:
        page = context.new_page()
        asked = requests_of(page, "/live/")
        page.route("**/overview*.js", lambda route: route.fulfill(body=script, content_type="text/javascript"))
        page.goto("/admin/")
        expect(page.get_by_role("img", name=f"0 units sold and {UNITS} left")).to_be_visible()
        return page, asked

    page, asked = tab()
    away, asked_away = tab()
    away.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away}); window.away = true")
    page.evaluate("document.querySelector('canvas').drawnFirst = true")
    asked.clear()
    asked_away.clear()
    slow, _ = tab(re.sub(r"PAUSE = \d+", "PAUSE = 60_000", SCRIPT))
    with slow.expect_response("**/admin/live/"):
        slow.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    # One quick try is enough on a busy machine, because a tab that pauses for longer is late each time.
    for sold in range(1, UNITS):
        with page.expect_response("**/admin/live/"):
            pass  # The tab's pause begins now, so the purchase below has to wait for the whole of it.
        buy(offer, a=1)
        changed = time.time() * 1000
        shown = f"() => window.shownAt['Sold {sold} Left {UNITS - sold}']"
        late = page.wait_for_function(shown).json_value() - changed
        if late <= 2000:
            break
    assert late <= 2000
    slow.wait_for_function(f"Date.now() > {changed + 2000}")
    assert slow.evaluate(shown) is None
    expect(page.locator("[data-part=verdict]")).to_contain_text(re.compile(f"{sold} units? sold"))
    assert page.evaluate(LAST_POINTS) == [sold, UNITS - sold]
    assert slow.evaluate(LAST_POINTS) == [0, UNITS]
    assert page.evaluate("document.querySelector('canvas').drawnFirst"), "a refresh keeps the chart under the pointer"
    lifecycle.pause(offer.sale)
    expect(page.get_by_role("alert").first).to_contain_text("has been paused since")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits a phone"
    while len(asked) < 3:
        page.wait_for_event("request")
    assert len(asked_away) <= 1, "one request may have been under way when the tab was hidden"
    with away.expect_request("**/admin/live/"):
        away.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")


OLD = "document.getElementById('overview').classList.contains('live-old')"


def opened_overview(enter: Enter, operator: int, **options: Any) -> Page:
    """Open the overview, and wait until it has refreshed itself."""
    page = opened(enter(operator, **options), "/admin/")
    with page.expect_response("**/admin/live/"):
        pass
    return page


def test_an_overview_is_red_and_old_while_postgres_hangs(enter: Enter, operator: int, proxy: Proxy) -> None:
    """Negative control: before and after the outage, the overview is neither red nor old."""
    on_sale({"a": 3})
    with web_server(DATABASE_URL=url(proxy), REPOSITORY_URL="https://git.example/shop") as (port, _):
        page = opened_overview(enter, operator, base_url=f"http://127.0.0.1:{port}")
        lost, age = page.locator("[data-lost]"), page.locator("[data-age]")
        verdict = page.locator("[data-part=verdict]")
        expect(verdict).to_contain_text("Conserved")
        assert (lost.is_visible(), age.inner_text(), page.evaluate(OLD)) == (False, "", False)
        proxy.hang()
        begun = time.monotonic()
        expect(lost).to_be_visible(timeout=9000)  # 1 s pause, 3 s without an answer, 2 to 3 s health check
        assert time.monotonic() - begun < 9
        expect(verdict).to_have_css("opacity", "0.5")
        expect(age).to_have_text(re.compile(r"^These figures are [4-9] s old\.$"))
        expect(age).to_have_text("These figures are 10 s old.", timeout=9000)
        links = [link.get_attribute("href") for link in lost.get_by_role("link").all()]
        proxy.restore()
        expect(lost).to_be_hidden()
        expect(verdict).to_have_css("opacity", "1")
        expect(age).to_have_text("")
    section = "incidents.md#postgres-is-away-or-read-only"
    assert links == ["/health/", f"https://git.example/shop/blob/main/docs/{section}"]
    assert exists(section)


def test_an_overview_that_only_takes_long_is_old_but_not_red(enter: Enter, operator: int) -> None:
    """The audit of very many orders may take over 3 s. The page then marks its figures as old, without an alert."""
    on_sale({"a": 3})
    page = opened_overview(enter, operator)
    held: list[Route] = []
    page.route("**/admin/live/", lambda route: held.append(route))
    with page.expect_response("**/health/") as checked:
        pass
    assert checked.value.ok
    with page.expect_response("**/health/"):
        pass  # The page has now handled the first answer.
    assert page.evaluate(OLD)
    expect(page.locator("[data-age]")).to_contain_text("s old.")
    expect(page.locator("[data-lost]")).to_be_hidden()
    held[0].continue_()
    page.wait_for_function(f"!{OLD}")
