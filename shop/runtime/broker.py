"""Celery's worker and beat while their broker refuses writes, as a full Redis does: they log that once, and go on."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from celery.beat import PersistentScheduler, SchedulingError
from celery.signals import heartbeat_sent
from celery.worker.consumer import Consumer

from inventory.outages import outages
from shop import heartbeat

PAUSE = 1.0
"""Seconds between two tries to connect. Celery itself makes no pause after an answer of the broker."""
TAKING = "Taking tasks from the broker"
SENDING = "Sending tasks to the broker"
SET_BACK = 1.0
"""Seconds by which the clock has to go back to count as set."""


def _clock() -> float:
    """Return the time of the clock minus that of the machine's run, which changes only when the clock is set."""
    return time.time() - time.monotonic()


class QuietConsumer(Consumer):
    """Celery's consumer, which logs the first of several failed tries to connect, and pauses between them.

    It also needs `broker_channel_error_retry`. Without that, the worker ends when the broker refuses a write.
    """

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        outages.failed(TAKING, exc)
        time.sleep(PAUSE)

    def on_ready(self) -> None:
        super().on_ready()
        outages.worked(TAKING)


@heartbeat_sent.connect
def sign_of_life(sender: Any, **_: Any) -> None:
    """Tell operators that this worker is alive. Celery sends its own heartbeat every two seconds."""
    heartbeat.sign(heartbeat.WORKER, f"{sender.eventer.hostname} {os.getpid()}")


class QuietScheduler(PersistentScheduler):
    """Celery's scheduler. While the broker refuses tasks, it logs the first only; each is sent when it is next due.

    Each task that was sent also tells operators that beat is alive: `advance_sales` is due every 5 s.

    Celery compares the time of the last run with the clock. When the clock was set back, also while beat was away, it
    would send nothing until the clock has caught up: such a time is replaced by the present.
    """

    def setup_schedule(self) -> None:
        super().setup_schedule()
        self._clock = _clock()
        self._forget_times_to_come()

    def tick(self, *arguments: Any, **options: Any) -> Any:
        before, self._clock = self._clock, _clock()
        if self._clock < before - SET_BACK:
            self._forget_times_to_come()
        return super().tick(*arguments, **options)

    def _forget_times_to_come(self) -> None:
        now = self.app.now()
        for entry in self.schedule.values():
            if entry.last_run_at > now:
                entry.last_run_at = now
        self._heap = None  # The next tick makes it again.

    def apply_async(self, *arguments: Any, **options: Any) -> Any:
        try:
            sent = super().apply_async(*arguments, **options)
        except SchedulingError as error:
            outages.failed(SENDING, error)
            return None
        outages.worked(SENDING)
        heartbeat.sign(heartbeat.BEAT, f"{socket.gethostname()} {os.getpid()}")
        return sent
