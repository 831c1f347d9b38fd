"""Deliver reports to the shop. Each report is repeated until the shop accepts it or the provider gives it up."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from shop.payments import signatures

PAYMENTS = "/api/payments/"
RETRY_DELAYS = (1, 2, 4, 8, 15, 30, 60, 60, 60, 60)
"""Seconds before each repeated attempt. After the last attempt, the report is given up. Real providers try for days."""
TIMEOUT = 25.0
"""Seconds to wait for the shop's response. This is longer than the shop's own time limits."""
MAX_ANSWER_CHARS = 2000
"""Maximum number of characters of a response that are kept."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to deliver a report.

    Args:
        status: status of the shop's response; None if there was no response.
        answer: the body of the response, or the error if there was no response.
    """

    at: datetime
    status: int | None
    answer: str

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


@dataclass(eq=False)
class Report:
    """A report, and its deliveries so far.

    Args:
        path: `PAYMENTS` or `CHARGEBACKS`.
        delay: seconds until the first attempt.
        after: another report. The first attempt waits until that report was sent once, accepted or not.
    """

    path: str
    content: Mapping[str, str]
    delay: float = 0.0
    after: Report | None = None
    attempts: list[Delivery] = field(default_factory=list)
    next_at: datetime | None = None
    ended: bool = False
    answered: threading.Event = field(default_factory=threading.Event)

    @property
    def body(self) -> str:
        return json.dumps(self.content, indent=2)

    @property
    def accepted(self) -> bool:
        return bool(self.attempts) and self.attempts[-1].accepted


class Courier:
    """Delivers reports to the shop, each in its own thread.

    Args:
        shop: URL of the shop, such as http://127.0.0.1:8000.
        tell: prints a line about each attempt.
    """

    def __init__(self, shop: str, tell: Callable[[str], object]) -> None:
        self._shop = urlsplit(shop)
        self._tell = tell
        self._stopped = threading.Event()

    def start(self, report: Report) -> None:
        """Begin to deliver a report. This does not wait for the shop."""
        report.next_at = datetime.now(UTC) + timedelta(seconds=report.delay)
        threading.Thread(target=self._deliver, args=[report], name="report", daemon=True).start()

    def stop(self) -> None:
        """Stop making new attempts."""
        self._stopped.set()

    def _deliver(self, report: Report) -> None:
        if report.after is not None:
            report.after.answered.wait()
        for pause in (report.delay, *RETRY_DELAYS):
            report.next_at = datetime.now(UTC) + timedelta(seconds=pause)
            if self._stopped.wait(pause):
                return
            report.attempts.append(self._send(report))
            report.answered.set()
            if report.accepted:
                break
        report.next_at, report.ended = None, True

    def _send(self, report: Report) -> Delivery:
        """Send a report once. Each attempt has a new signature, because the shop refuses old signatures."""
        body = report.body.encode()
        headers = {"Content-Type": "application/json", signatures.HEADER: signatures.sign(body)}
        kind = http.client.HTTPSConnection if self._shop.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._shop.hostname or "", self._shop.port, timeout=TIMEOUT)
        at = datetime.now(UTC)
        try:
            # Use http.client, because it follows no redirect: a redirect would turn the POST into a GET.
            connection.request("POST", report.path, body, headers)
            response = connection.getresponse()
            attempt = Delivery(at, response.status, response.read(MAX_ANSWER_CHARS).decode(errors="replace"))
        except (OSError, http.client.HTTPException) as error:
            attempt = Delivery(at, None, str(error) or type(error).__name__)
        finally:
            connection.close()
        outcome = attempt.status or f"no answer: {attempt.answer}"
        self._tell(f"{report.path} {report.content['reference']}: {outcome}")
        return attempt
