"""Celery's worker and beat, changed so that they survive a broker that refuses writes, and log the outage only once."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from celery.beat import PersistentScheduler, SchedulingError
from celery.signals import heartbeat_sent
from celery.worker import heartbeat as celery_heartbeat
from celery.worker.consumer import Consumer
from celery.worker.consumer.heart import Heart

from inventory.outages import outages
from shop import heartbeat

PAUSE = 1.0
"""Seconds between two attempts to connect. Celery itself does not pause if the broker has responded with an error."""
TAKING = "Taking tasks from the broker"
SENDING = "Sending tasks to the broker"
SET_BACK = 1.0
"""If the wall clock goes back by more than this number of seconds, it was set back."""


def _clock() -> float:
    """Return the wall clock minus the monotonic clock. The difference changes only when the wall clock is set."""
    return time.time() - time.monotonic()


class OneAttempt(celery_heartbeat.Heart):
    """Celery's heartbeat, which is sent only once.

    Celery itself would repeat a failed heartbeat until the broker is back, in the thread of the worker's loop. A worker
    that was told to stop would not stop until then. The next heartbeat follows in two seconds.
    """

    def _send(self, event: str, retry: bool = False) -> Any:  # noqa: FBT001, FBT002 - Celery's own signature
        return super()._send(event, retry=False)


class HeartOfOneAttempt(Heart):
    """The part of Celery's worker that sends heartbeats. It sends each heartbeat only once, see `OneAttempt`."""

    def start(self, c: Consumer) -> None:
        c.heart = OneAttempt(c.timer, c.event_dispatcher, self.heartbeat_interval)
        c.heart.start()


class QuietConsumer(Consumer):
    """Celery's consumer, which logs only the first failed attempt to connect, and pauses between attempts.

    The setting `broker_channel_error_retry` is needed, too: otherwise the worker ends when the broker refuses a write.
    """

    class Blueprint(Consumer.Blueprint):
        default_steps = tuple(
            HeartOfOneAttempt if step == "celery.worker.consumer.heart:Heart" else step
            for step in Consumer.Blueprint.default_steps
        )

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        outages.failed(TAKING, exc)
        time.sleep(PAUSE)

    def on_ready(self) -> None:
        super().on_ready()
        outages.worked(TAKING)


@heartbeat_sent.connect
def sign_of_life(sender: Any, **_: Any) -> None:
    """Record that this worker is alive, each time Celery sends its own heartbeat, which is every two seconds."""
    heartbeat.sign(heartbeat.WORKER, f"{sender.eventer.hostname} {os.getpid()}")


class QuietScheduler(PersistentScheduler):
    """Celery's scheduler, which logs only the first refused task. A refused task is sent again when it is next due.

    Each sent task also records that beat is alive. The most frequent task, `advance_sales`, is due every 5 s.

    When the clock was set back, the time of a task's last run may be in the future. Celery would not send the task
    before that time, so this class replaces it by the present time.
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
        self._heap = None  # The next tick builds the heap again from the changed times.

    def apply_async(self, *arguments: Any, **options: Any) -> Any:
        try:
            sent = super().apply_async(*arguments, **options)
        except SchedulingError as error:
            outages.failed(SENDING, error)
            return None
        outages.worked(SENDING)
        heartbeat.sign(heartbeat.BEAT, f"{socket.gethostname()} {os.getpid()}")
        return sent
