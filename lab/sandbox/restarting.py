"""A stage whose Redis restarts: a server of its own that is killed, and starts with the file that it last wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.ladder.catalogue import LadderEntry
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.valkeys import FORGETS, Fleet
from lab.workloads.registry import events_of


class RestartingSandbox(Sandbox):
    """A stage that loses what Redis was told after its last snapshot, as a loss of power does.

    The snapshot is written when the sale begins, so what is lost is certain; on a clock it would be the last second,
    or whatever the server is set to.

    Args:
        database: see `Sandbox`.
    """

    def __init__(self, database: Mapping[str, Any]) -> None:
        self._fleet = Fleet()
        self._server = self._fleet.node("stock", *FORGETS)
        super().__init__(self._server.server.url, database)

    def note(self) -> None:
        """Redis writes down what it keeps now."""
        self._server.admin.save()

    def restart(self) -> None:
        """In the main thread: Redis loses what it was told since `note`, and everybody his connection."""
        self._server.kill()
        self._server.start()

    def close(self) -> None:
        super().close()
        self._fleet.close()


def sandbox_for(entry: LadderEntry, stage: Sandbox) -> Sandbox:
    """Where a command tries a rung: on that stage, or on one beside it whose Redis restarts, if the stock's does."""
    if entry.track == "locks" or "restart" not in events_of(entry):
        return stage
    restarting: Sandbox = stage.kept("restarting", lambda: RestartingSandbox(stage.database))
    return restarting
