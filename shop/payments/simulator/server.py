"""The web pages of the simulated provider. A buyer arrives with a payment request that the shop has signed."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import gettext as _

from shop.payments.request import NotSigned, PaymentRequest
from shop.payments.simulator.payments import Button, Payments

PAY = "/pay/"
PAYMENT = re.compile(r"/payments/(sim_[0-9a-f]{16})/")
REFERENCE = re.compile(r"sim_[0-9a-f]{16}")
STYLE = Path(__file__).with_name("style.css")
MAX_BODY_BYTES = 16 * 1024
MAX_DELAY = 24 * 3600
"""Maximum delay of a report in seconds."""
EXPIRY_MARGIN = 15
"""Seconds from the end of the time to pay until an order has surely expired: the shop expires orders every 10 s."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class RequestRefused(Exception):
    """The provider refuses a request. The message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read_request(query: str) -> PaymentRequest:
    """Check a signed payment request, and return it.

    Raises:
        RequestRefused: the signature does not match, or the link back does not lead to a host of the shop.
    """
    try:
        wanted = PaymentRequest.read(query, settings.PAYMENT_SECRET)
    except NotSigned as error:
        raise RequestRefused(
            403,
            _(
                "This link was changed on its way, or the shop has another PAYMENT_SECRET. Go back to the shop, and "
                "press Pay there."
            ),
        ) from error
    back = urlsplit(wanted.back)
    host, _port = split_domain_port(back.netloc.lower())
    if back.scheme not in ("http", "https") or not validate_host(host, settings.ALLOWED_HOSTS):
        raise RequestRefused(
            403,
            _(
                "This link leads back to an address that is not the shop's. If it is, the operator adds it to "
                "ALLOWED_HOSTS."
            ),
        )
    return wanted


class Server(ThreadingHTTPServer):
    """Serves the pages until it is shut down.

    Args:
        address: host and port to listen on.
        payments: the payments that buyers have made so far.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], payments: Payments) -> None:
        self.payments = payments
        super().__init__(address, Pages)


class Pages(BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    timeout: ClassVar[float] = 10.0
    server: Server
    server_version = "SimulatedProvider"

    def do_GET(self) -> None:
        self._answer(self._show)

    def do_POST(self) -> None:
        self._answer(self._choose)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Log nothing for a page. Only reports are logged."""

    def _answer(self, page: Any) -> None:
        chinese = self.headers.get("Accept-Language", "").lower().startswith("zh")
        with translation.override("zh-hans" if chinese else "en"):
            try:
                page(urlsplit(self.path))
            except RequestRefused as refused:
                self._page("refused", {"refused": refused}, status=refused.status)

    def _show(self, address: Any) -> None:
        match address.path:
            case "/":
                self._page("home", {})
            case "/style.css":
                self._send(200, STYLE.read_bytes(), "text/css")
            case path if path == PAY:
                wanted = read_request(address.query)
                left = max(0, int((wanted.pay_by - datetime.now(UTC)).total_seconds()))
                values = {"wanted": wanted, "request": address.query, "late": left + EXPIRY_MARGIN}
                self._page("pay", {**values, "reference": f"sim_{secrets.token_hex(8)}"}, language=wanted.language)
            case path if found := PAYMENT.fullmatch(path):
                payment = self.server.payments.get(found[1])
                if payment is None:
                    raise RequestRefused(
                        404,
                        _(
                            "This provider knows no such payment. It forgets all of them when it stops. Go back to the "
                            "shop, and press Pay there."
                        ),
                    )
                self._page("payment", {"payment": payment}, language=payment.wanted.language)
            case _:
                raise _no_such_address()

    def _choose(self, address: Any) -> None:
        form = self._form()
        if address.path != PAY:
            raise _no_such_address()
        wanted = read_request(form.get("request", ""))
        choice, seconds = None, 0
        with suppress(ValueError):
            choice, seconds = Button(form.get("choice", "")), int(form.get("seconds") or 0)
        reference = form.get("reference", "")
        if choice is None or not REFERENCE.fullmatch(reference) or not 0 <= seconds <= MAX_DELAY:
            raise RequestRefused(400, _("The form is not complete. Go back to the shop, and press Pay there."))
        payment = self.server.payments.make(choice, wanted, reference=reference, seconds=seconds)
        self._send(303, b"", "text/plain", Location=f"/payments/{payment.reference}/")

    def _form(self) -> Mapping[str, str]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            raise RequestRefused(413, _("The form is not complete. Go back to the shop, and press Pay there."))
        text = self.rfile.read(int(length)).decode(errors="replace")
        return {name: values[0] for name, values in parse_qs(text).items()}

    def _page(self, name: str, values: Mapping[str, Any], *, status: int = 200, language: str = "") -> None:
        with translation.override(language or translation.get_language()):
            text = render_to_string(f"shop/provider/{name}.html", dict(values))
        self._send(status, text.encode(), "text/html; charset=utf-8")

    def _send(self, status: int, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        for header, value in {**HEADERS, **headers, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)


def _no_such_address() -> RequestRefused:
    return RequestRefused(404, _("There is nothing at this address. Go back to the shop, and press Pay there."))
