"""The curl and Python samples of README and docs run against a live shop and get the responses that the page shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import Any

import pytest
from django.core.management import call_command
from redis import Redis

from shop.models import Sale
from tests.docs.pages import BLOCK, PAGES, finish
from tests.factories import new_customer, slow
from tests.shop.conftest import Buyer


@pytest.mark.parametrize("page", ["README.md", *slow("docs/tutorial.md", "docs/api.md")])
def test_the_samples_run(page: str, live_server: Any, redis: Redis, settings: Any) -> None:
    if not shutil.which("curl") and not os.environ.get("CI"):
        pytest.skip("curl is not installed")
    call_command("sample", password="last-unit")
    sale = Sale.objects.get(slug="tonight")
    products = [item.product_id for item in sale.items.order_by("pk")]
    before, _, payments = PAGES[page].partition("## Report a payment")

    def run(text: str) -> None:
        text = text.replace("localhost:8000", live_server.url.removeprefix("http://"))
        text = text.replace('"sale": 1', f'"sale": {sale.pk}').replace("/sales/1/", f"/sales/{sale.pk}/")
        text = re.sub(r'"product": ([123])', lambda found: f'"product": {products[int(found[1]) - 1]}', text)
        text = text.replace("redis://localhost:6379/0", settings.REDIS_LOCATION).replace(
            "time.sleep(5)", "time.sleep(0)"
        )
        run_in_shell(text)
        python = "\n".join(block for kind, block in BLOCK.findall(text) if kind == "python")
        printed = finish(sys.executable, "-c", python, PAYMENT_SECRET="shared-with-the-provider").splitlines()
        expected = re.findall(r"^ *print\(.*\)  # (.*)$", python, re.MULTILINE)
        assert printed == expected if page == "docs/api.md" else printed[0].startswith("held, with fence")

    run(before)
    if payments:
        settings.PAYMENT_SECRET = "shared-with-the-provider"
        body = {"sale": sale.pk, "items": [{"product": products[1], "quantity": 1, "price": "59.90"}]}
        run(payments.replace("THE-ORDER", Buyer(new_customer()).order(body).json()["id"]))


def run_in_shell(text: str) -> None:
    """Run the blocks with curl as one script. Check that responses have the status, headers and fields of the page."""
    pairs: list[tuple[str, str]] = []
    for kind, block in BLOCK.findall(text):
        if kind == "sh" and "curl " in block:
            pairs.append((block, "HTTP/1.1 2"))
        elif kind == "http":
            pairs[-1] = (pairs[-1][0], block)
    script = "set -euo pipefail\n" + "printf '\\n#####\\n'\n".join(block for block, _ in pairs)
    for answer, (block, shown) in zip(finish("bash", "-c", script).split("\n#####\n"), pairs, strict=True):
        head, _, body = answer.replace("\r", "").partition("\n\n")
        head_shown, _, body_shown = shown.partition("\n\n")
        assert head.startswith(" ".join(head_shown.split()[:2])), f"{block}\n{answer}"
        assert headers(head_shown) <= headers(head), f"{block}\n{answer}"
        assert not body_shown or json.loads(body).keys() == json.loads(body_shown).keys(), f"{block}\n{answer}"


def headers(head: str) -> set[str]:
    return {line.partition(":")[0].lower() for line in head.splitlines()[1:]}


@pytest.mark.parametrize(
    "shown", ["HTTP/1.1 409 Conflict", "HTTP/1.1 201 Created\nLocation: /", 'HTTP/1.1 201\n\n{"b": 1}']
)
def test_a_sample_with_another_answer_is_found(shown: str) -> None:
    block = "```sh\n: curl -i localhost\nprintf 'HTTP/1.1 201 Created\\r\\nDate: now\\r\\n\\r\\n{\"a\": 1}'\n```\n"
    run_in_shell(f'{block}```http\nHTTP/1.1 201 Created\nDate: then\n\n{{"a": 2}}\n```\n')
    with pytest.raises(AssertionError):
        run_in_shell(f"{block}```http\n{shown}\n```\n")
