"""A stage whose Redis restarts: a server of its own that is killed, and starts with the file that it last wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.ladder.catalogue import Entry
from lab.schedule.fleet import FORGETS, Fleet
from lab.schedule.stage import Stage
from lab.schedule.trials.which import events_of


class RestartingStage(Stage):
    """A stage that loses what Redis was told after its last snapshot, as a loss of power does.

    The snapshot is written when the sale begins, so what is lost is certain; on a clock it would be the last second,
    or whatever the server is set to.

    Args:
        database: see `Stage`.
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


def stage_for(entry: Entry, stage: Stage) -> Stage:
    """Where a command tries a rung: on that stage, or on one beside it whose Redis restarts, if the stock's does."""
    if entry.track == "locks" or "restart" not in events_of(entry):
        return stage
    restarting: Stage = stage.kept("restarting", lambda: RestartingStage(stage.database))
    return restarting
