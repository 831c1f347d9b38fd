"""The size of a page with all files that it loads, and the time until Chromium shows it."""

from __future__ import annotations

import re
import shutil
import urllib.request
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium")
PHONE = {"width": 390, "height": 844}
ROUNDS = 3
SETTLED = 500
"""Milliseconds to wait for larger content after the page is loaded."""
IMPORTED = re.compile(r'^import .*? from "([^"]+)";', re.MULTILINE)
PAINTED = 'performance.getEntriesByName("first-contentful-paint").map((entry) => entry.startTime)'
LARGEST = """() => {
    const observer = new PerformanceObserver(() => {});
    observer.observe({ type: "largest-contentful-paint", buffered: true });
    return observer.takeRecords().map((entry) => entry.startTime);
}"""
"""Script that returns the times of paints, each with larger content than all earlier ones. The last time is that of the
largest contentful paint."""

PHONES: dict[str, Mapping[str, Any] | None] = {
    "this machine": None,
    "phone on 4G": {
        "offline": False,
        "latency": 150,
        "downloadThroughput": 1_600_000 / 8,
        "uploadThroughput": 750_000 / 8,
    },
    "slow phone": {
        "offline": False,
        "latency": 150 * 3.75,
        "downloadThroughput": 1.6 * 1024 * 0.9 * 1024 / 8,
        "uploadThroughput": 750 * 0.9 * 1024 / 8,
    },
}
"""Simulated networks: latency in milliseconds, and bytes per second.

`phone on 4G` is the network that Lighthouse calls slow 4G: 150 ms and 1.6 Mbit/s. `slow phone` has the figures with
which Lighthouse throttles a browser to simulate this network: 3.75 times the latency, and 0.9 times the throughput.
"""
SLOWER = 4
"""Factor by which the processor of a phone is slower than this machine's, as in Lighthouse."""


class Loaded(HTMLParser):
    """Collects the addresses of the files that the HTML of a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        name = {"link": "href", "script": "src", "img": "src"}.get(tag)
        if name and (address := dict(attributes).get(name)):
            self.addresses.append(address)


def weigh(url: str, more: Sequence[str]) -> dict[str, int]:
    """Return the compressed bytes of a page and of each file that it loads, by address. Headers are not counted.

    Args:
        url: address of the page.
        more: addresses that the page's scripts request.
    """
    page = Loaded()
    sizes: dict[str, int] = {}
    waiting = [url]
    while waiting:
        address = waiting.pop(0)
        if address in sizes:
            continue
        sizes[address] = len(fetch(address, {"Accept-Encoding": "gzip"}))
        if address == url:
            page.feed(fetch(address, {}).decode())
            waiting += [urljoin(url, each) for each in [*page.addresses, *more]]
        elif address.endswith(".js"):
            waiting += [urljoin(address, each) for each in IMPORTED.findall(fetch(address, {}).decode())]
    return {address.removeprefix(urljoin(url, "/")[:-1]): size for address, size in sizes.items()}


def fetch(address: str, headers: Mapping[str, str]) -> bytes:
    """Return the body of an answer as it is sent: compressed if the headers accept that."""
    with urllib.request.urlopen(urllib.request.Request(address, headers={**headers}), timeout=30) as response:  # noqa: S310
        return bytes(response.read())


def measure_paint(url: str) -> dict[str, Any]:
    """Return the milliseconds until Chromium shows a page, with an empty cache.

    Returns:
        For each simulated phone, with and without scripts, medians of `ROUNDS` loads: the first contentful paint
        (`first`) and the largest contentful paint (`largest`). Without Chromium or Playwright, `skipped` with the
        reason.
    """
    if CHROMIUM is None:
        return {"skipped": "Chromium is not installed. On Debian, install it: apt-get install chromium"}
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {"skipped": "Playwright is not installed. Install it: pip install playwright"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        try:
            return {
                phone: {
                    name: medians([paint(browser, url, network=network, scripts=scripts) for _ in range(ROUNDS)])
                    for name, scripts in (("with_scripts", True), ("without_scripts", False))
                }
                for phone, network in PHONES.items()
            }
        finally:
            browser.close()


def medians(paints: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(paint[name] for paint in paints) for name in paints[0]}


def paint(browser: Browser, url: str, *, network: Mapping[str, Any] | None, scripts: bool) -> dict[str, float]:
    """Load a page in a new browser profile.

    Return the milliseconds until the first and the largest contentful paint.
    """
    context = browser.new_context(viewport={**PHONE}, java_script_enabled=scripts)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        if network is not None:
            session = context.new_cdp_session(page)
            session.send("Network.enable")
            session.send("Network.emulateNetworkConditions", {**network})
            session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
        page.goto(url)  # waits for all pictures
        while not (first := page.evaluate(PAINTED)) or not page.evaluate(LARGEST):
            page.wait_for_timeout(20)
        page.wait_for_timeout(SETTLED)
        return {"first": float(first[0]), "largest": float(page.evaluate(LARGEST)[-1])}
    finally:
        context.close()
