"""Clients whose orders are in a Postgres primary with a standby."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import OperationalError

from inventory.errors import StockUnavailable
from lab.checkers.stock import REFUSED
from lab.explorer.actor import stop_before
from lab.explorer.history import History
from lab.explorer.terms import POSTGRES, Job, PendingStep
from lab.ladder.catalogue import LadderEntry
from lab.sandbox.standby import STANDBY, StandbyGroup
from lab.workloads.sellers import Seller
from lab.workloads.stock import LAST_UNIT, StockWorkload

UP_TO_DATE = "up to date"


class StandbyWorkload(StockWorkload):
    """Each client places one order. The standby has the stock, but receives no later writes until its own step.

    Args:
        group: the two servers.
    """

    def __init__(
        self, entry: LadderEntry, names: Sequence[str], history: History, seller: Seller, group: StandbyGroup
    ) -> None:
        super().__init__(entry, group.sandbox, names, history, seller, LAST_UNIT)
        self.group = group

    def prepare(self) -> Mapping[str, Job]:
        self.group.begin()
        jobs = super().prepare()
        self.group.fall_behind()
        return {**jobs, STANDBY: self._receive}

    def clean_up(self) -> None:
        self.group.end()

    def _order(self, name: str) -> str:
        try:
            return super()._order(name)
        except OperationalError:  # the connection was lost with the primary; the shop then says "try again"
            return f"{REFUSED}{StockUnavailable.__name__}"

    def _receive(self) -> str:
        does = "the standby receives what the primary has written"
        stop_before(PendingStep(does, "process", writes=frozenset({POSTGRES})))
        self.group.catch_up()
        return UP_TO_DATE
