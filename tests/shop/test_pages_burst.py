"""Two thousand buyers, 200 at a time, send a real web server the requests of a sale's pages."""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import transaction
from redis import Redis

from shop import conservation
from shop.models import Sale
from shop.overview.selling import open_sales
from tests.factories import new_customer, on_sale
from tests.shop.payment_support import session_of
from tests.shop.web_server import web_server

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

BUYERS = 2000
AT_ONCE = 200
TRIES = 100


class Visitor:
    """A browser with its own connection."""

    def __init__(self, port: int, session: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.cookie = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={session}"}

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, bytes]:
        """Return status and body. If the shop is busy, try again after the time that it names."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for _ in range(TRIES):
            self.connection.request(method, path, body=body, headers={**self.cookie, **named})
            answer = self.connection.getresponse()
            content = answer.read()
            if answer.status not in (429, 503):
                return answer.status, content
            time.sleep(float(answer.headers["Retry-After"]))  # as the page does
        raise AssertionError(f"{method} {path} was busy {TRIES} times.")

    def buy(self, slug: str, sale: int, product: int) -> str:
        """Send the requests of the page and its script. Return the outcome."""
        assert self.ask("GET", f"/sales/{slug}/")[0] == 200
        now = json.loads(self.ask("GET", f"/sales/{slug}/now.json")[1])
        access = json.loads(self.ask("GET", "/account/token/")[1])["access"]
        if now["state"] == "sold-out":
            return "told sold out"
        order = json.dumps({"sale": sale, "items": [{"product": product, "quantity": 1, "price": "9.90"}]})
        headers = {"Authorization": f"Bearer {access}", "Content_Type": "application/json"}
        status, content = self.ask("POST", "/api/orders/", order, Idempotency_Key=str(uuid4()), **headers)
        placed = json.loads(content)
        if status == 201:
            assert self.ask("GET", f"/orders/{placed['id']}/")[0] == 200
            return "bought"
        assert status == 409, placed
        return str(placed["type"])


@pytest.mark.parametrize("units", [1500, BUYERS])
def test_two_thousand_buyers_through_the_pages(redis: Redis, units: int) -> None:
    """All units are sold. With a unit for each buyer, nobody is refused."""
    offer = on_sale({"a": units}, strategy="group-commit")
    Sale.objects.filter(pk=offer.sale).update(slug="tonight")
    with transaction.atomic():
        sessions = [session_of(new_customer()) for _ in range(BUYERS)]
    with web_server(WEB_PROCESSES="2") as (port, _), ThreadPoolExecutor(AT_ONCE) as crowd:
        visits = [
            crowd.submit(Visitor(port, session).buy, "tonight", offer.sale, offer.products["a"]) for session in sessions
        ]
        ended = Counter(visit.result() for visit in visits)
    assert ended["bought"] == units
    assert ended["bought"] + ended["/api/problems/sold-out/"] + ended["told sold out"] == BUYERS
    (figures,) = conservation.figures()
    assert (figures.sold, figures.on_hand, figures.conserved) == (units, 0, True)
    (shown,) = open_sales()
    assert (shown.sold, shown.left, shown.curve[-1]) == (figures.sold, figures.on_hand, figures.sold)
