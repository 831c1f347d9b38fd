"""Run one burst against a shop. Locust generates the load in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.conf import settings

from inventory.strategies import registry
from loadtest.verdict import Verdict
from shop.runtime import serve

LOCUSTFILE = Path(__file__).parent / "locustfile.py"
LOCUST_FILES = 256
"""Maximum number of files that Locust has open, apart from its buyers' connections."""

OnProgress = Callable[[dict[str, Any]], None]


class RushError(Exception):
    """The burst ended without a verdict."""


@dataclass(frozen=True, kw_only=True)
class Rush:
    """The options of one burst.

    Args:
        strategy: the shop's strategy; ignored when `rung` is set.
        rung: a flawed way of selling in the lab (a rung); empty to sell with `strategy`.
        stock: units of each sku.
        skus: number of skus. With several, each order has 1 to 3 units.
        clients: number of buyers that order at the same time. A buyer places one order after another.
        quantity: units in each order, if there is one sku.
        attempts: number of orders; 0 for twice as many orders as the stock can serve, at least one per client.
        seconds: duration after which no order is started or retried; 0 for no limit.
    """

    strategy: str = registry.DEFAULT
    rung: str = ""
    stock: int = 100
    skus: int = 1
    clients: int = 50
    quantity: int = 1
    attempts: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return self.rung or self.strategy

    @property
    def needs_workers(self) -> bool:
        """Whether the strategy queues orders, which Celery's worker has to save."""
        return not self.rung and registry.get(self.strategy).queues

    @property
    def wanted(self) -> int:
        """Number of orders that the burst attempts to place."""
        return self.attempts or max(self.clients, 2 * self.stock * self.skus // self.quantity)

    def run(self, url: str, *, progress: OnProgress = lambda _: None) -> Verdict:
        """Run the burst and return its verdict; see `loadtest.verdict.compute_verdict`.

        Args:
            url: address of the shop.
            progress: called several times a second with the counts so far.

        Raises:
            RushError: Locust is not installed, or ended without a verdict; no buyer got an order or a refusal; or this
                process may not open enough files.
        """
        _require_locust()
        self._allow_files()
        settings.RUN_FOLDER.create()
        log = settings.RUN_FOLDER.path / f"locust-{os.getpid()}.log"
        with (
            log.open("w") as errors,
            # Locust exits when its standard input closes, so the burst cannot outlive this process.
            subprocess.Popen(
                self._locust_command(url), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as locust,
        ):
            verdict, reason = None, "Locust reported no verdict"
            try:
                for line in locust.stdout or ():
                    if line.startswith("{"):
                        message = json.loads(line)
                        verdict, reason = message.get("result", verdict), message.get("error", reason)
                        progress(message)
            except BaseException:
                locust.terminate()
                raise
        if verdict and not verdict["answered"]:
            verdict, reason = None, f"nobody was served (does {url} use our DATABASE_URL and SECRET_KEY?)"
        if not verdict:
            raise RushError(f"The burst ended without a verdict: {reason}. Locust's messages are in {log}.")
        return verdict

    def _allow_files(self) -> None:
        """Raise the limit of open files. Otherwise buyers could not connect, and the verdict would blame the shop."""
        wanted = self.clients + LOCUST_FILES
        if (allowed := serve.allow_files(wanted)) < wanted:
            raise RushError(
                f"This process may open {allowed:,} files, too few for {self.clients:,} buyers and Locust itself. "
                f"Raise the limit with `ulimit -n`, or use --clients {max(1, allowed - LOCUST_FILES)}."
            )

    def _locust_command(self, url: str) -> list[str]:
        return [
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"),
            *("--loglevel", "ERROR", "--host", url, "--users", str(self.clients), "--strategy", self.strategy),
            *("--rung", self.rung, "--stock", str(self.stock), "--skus", str(self.skus)),
            *("--quantity", str(self.quantity)),
            *("--attempts", str(self.wanted), "--seconds", str(self.seconds), "--json-lines"),
        ]


def _require_locust() -> None:
    # The Docker image of the shop does not contain Locust.
    if find_spec("locust") is None:
        raise RushError("Locust is not installed: pip install --require-hashes -r requirements.txt")
