"""A sandbox with its own Redis server. The server can be killed and started again with the snapshot on its disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.sandbox.fleet import VOLATILE, Fleet
from lab.sandbox.sandbox import Sandbox


class RestartingSandbox(Sandbox):
    """A sandbox whose Redis can lose all writes since its last snapshot, as in a power failure.

    The snapshot is written when the sale begins, so it is certain which writes are lost. A real server writes at
    intervals, and would lose, for example, the writes of its last second.

    Args:
        database: see `Sandbox`.
    """

    def __init__(self, database: Mapping[str, Any]) -> None:
        self._fleet = Fleet()
        self._server = self._fleet.node("stock", *VOLATILE)
        super().__init__(self._server.server.url, database)

    def save_snapshot(self) -> None:
        """Make Redis write its data to disk now."""
        self._server.admin.save()

    def restart(self) -> None:
        """Make Redis lose all writes since `save_snapshot`, and drop every connection. Call it in the main thread."""
        self._server.kill()
        self._server.start()

    def close(self) -> None:
        super().close()
        self._fleet.close()
