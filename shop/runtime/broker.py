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
TAKING = "To take tasks from the broker"
SENDING = "To send tasks to the broker"


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
    """Celery's scheduler, which logs the first of several tasks that the broker refuses: each is sent when next due.

    It tells operators that it is alive with each task, as `advance_sales` is due every 5 s.
    """

    def apply_async(self, *arguments: Any, **options: Any) -> Any:
        try:
            sent = super().apply_async(*arguments, **options)
        except SchedulingError as error:
            outages.failed(SENDING, error)
            return None
        outages.worked(SENDING)
        heartbeat.sign(heartbeat.BEAT, f"{socket.gethostname()} {os.getpid()}")
        return sent
