"""Start the metrics and traces of a process, and record the results of reconciliations in the metrics."""

from __future__ import annotations

import time
from pathlib import Path

from django.conf import settings

from servers import ServerError
from shop.api.exception_handler import problem_of
from shop.metrics import recording
from shop.reconcile import Reconciled
from shop.traces import tracing


def start(role: str) -> None:
    """Start the metrics of this process if METRICS is on, and its traces if TRACES is on.

    Args:
        role: `web`, `worker` or `beat`.
    """
    if settings.TRACES and role != "beat":
        tracing.start(role, _slug_of)
    if not settings.METRICS:
        return None
    folder = Path(settings.METRICS_FOLDER)
    if folder.parent == settings.RUN_FOLDER.path:
        try:
            settings.RUN_FOLDER.create()
        except ServerError as error:
            return recording.logger.error("This %s process is not in the metrics: %s", role, error)
    return recording.start(role, folder, _slug_of)


def _slug_of(error: Exception) -> str:
    return problem_of(error).slug


def reconciled(done: Reconciled) -> None:
    """Record the result of a reconciliation in the metrics."""
    if (recorder := recording.recorder()) is not None:
        recorder.reconciled(at=time.time(), broken=len(done.after), repairs=len(done.repairs), drift=done.units)
