"""Access to the recorder of this process, which counts events for the metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from inventory import observing
from shop.metrics.folder import MetricsFolder

if TYPE_CHECKING:
    from shop.metrics.recorder import Recorder

logger = logging.getLogger(__name__)

_recorder: Recorder | None = None


class Answer(Protocol):
    """What the metrics read from the result of placing an order."""

    @property
    def replayed(self) -> bool: ...

    @property
    def queued(self) -> bool: ...


Placed = TypeVar("Placed", bound=Answer)


def start(role: str, folder: Path, slug_of: Callable[[Exception], str]) -> None:
    """Start the recorder of this process. If the folder cannot be used, log that and record nothing.

    Args:
        role: role of this process: `web`, `worker` or `beat`.
        slug_of: returns the problem type of an error.
    """
    global _recorder
    # Import this here, because commands without metrics need not load prometheus_client.
    from shop.metrics.recorder import Recorder

    try:
        _recorder = Recorder(role, MetricsFolder(folder), slug_of)
    except OSError as error:
        logger.error("This %s process is not in the metrics: %s. Set METRICS_FOLDER to another folder.", role, error)
    else:
        observing.listen(_recorder)


def recorder() -> Recorder | None:
    """Return the recorder of this process; None if it has none."""
    return _recorder


def counted(place: Callable[..., Placed]) -> Callable[..., Placed]:
    """Decorate a function that places an order: record its result and duration."""

    @wraps(place)
    def counting(*, sale: int, **wanted: object) -> Placed:
        if _recorder is None:
            return place(sale=sale, **wanted)
        began = time.monotonic()
        try:
            placed = place(sale=sale, **wanted)
        except Exception as error:
            _recorder.order(sale, time.monotonic() - began, error)
            raise
        result = "replayed" if placed.replayed else "queued" if placed.queued else "placed"
        _recorder.order(sale, time.monotonic() - began, result)
        return placed

    return counting
