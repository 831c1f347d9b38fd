"""One strategy, one burst, one verdict. Locust makes the load, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from inventory.strategies import registry
from shop.management.commands import serve

LOCUSTFILE = Path(__file__).parent / "locustfile.py"
FILES = 256
"""What Locust has open beside its buyers' connections, at most."""


class RushError(Exception):
    """The burst did not come to a verdict."""


@dataclass(frozen=True, kw_only=True)
class Rush:
    """A burst to come.

    Args:
        strategy: how the shop takes stock; ignored where `rung` names a flawed rung of the lab.
        stock: units there are of each sku.
        skus: how many there are. Of several, each order is a cart of 1 to 3 units.
        clients: buyers who ask at the same time, each one order after another.
        quantity: units in an order of a single sku.
        attempts: orders that are tried; 0 for twice what there is, at least one a client.
        seconds: after which nobody comes or asks again; 0 for never.
    """

    strategy: str = "guarded-update"
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
        """Whether orders are queued, and somebody has to save them."""
        return not self.rung and registry.get(self.strategy).queues

    @property
    def wanted(self) -> int:
        """Orders that will be tried."""
        return self.attempts or max(self.clients, 2 * self.stock * self.skus // self.quantity)

    def run(self, url: str, *, progress: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
        """Let the burst come.

        Args:
            url: of the shop.
            progress: called now and then with what has been answered so far.

        Returns:
            The verdict; see `loadtest.audit.verdict`.

        Raises:
            RushError: Locust ended without one, or could not have played so many buyers: they would have complained of
                the shop.
        """
        if (allowed := serve.allow_files(self.clients + FILES)) < self.clients + FILES:
            raise RushError(
                f"One process may open {allowed:,} files here, too few for {self.clients:,} buyers at once and Locust "
                f"itself. `ulimit -n` sets how many; --clients {max(1, allowed - FILES)} would do."
            )
        command = [
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"),
            *("--loglevel", "ERROR", "--host", url, "--users", str(self.clients), "--strategy", self.strategy),
            *("--rung", self.rung, "--stock", str(self.stock), "--skus", str(self.skus)),
            *("--quantity", str(self.quantity)),
            *("--attempts", str(self.wanted), "--seconds", str(self.seconds), "--json-lines"),
        ]
        settings.RUN_FOLDER.create()
        log = settings.RUN_FOLDER.path / f"locust-{os.getpid()}.log"
        with (
            log.open("w") as complaints,
            # It ends when its standard input does: a burst must not outlive us, however we end.
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True
            ) as locust,
        ):
            result, reason = None, "no verdict was said"
            try:
                for line in locust.stdout or ():
                    if line.startswith("{"):
                        said = json.loads(line)
                        result, reason = said.get("result", result), said.get("error", reason)
                        progress(said)
            except BaseException:
                locust.terminate()
                raise
        if result and not result["answered"]:
            result, reason = None, f"nobody was served (does {url} use our DATABASE_URL and SECRET_KEY?)"
        if not result:
            raise RushError(f"The burst came to no verdict: {reason}. What Locust said is in {log}.")
        return result
