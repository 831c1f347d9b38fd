"""Clients that queue for a lock on ZooKeeper or etcd.

When a client crashes, its session ends immediately. On real servers it would last for the session's timeout.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from itertools import count
from typing import Any, cast

from lab.explorer.actor import Actor, current_actor
from lab.explorer.terms import Job
from lab.workloads.lock import LockWorkload

RESPONSE_TIMEOUT = 10.0
"""Time limit in seconds for requests to a server that usually take milliseconds."""
QUEUE = "queue"
"""The name that stands for the queue in `PendingStep`. All steps on the queue read or write it."""

_numbers = count(1)


class LockServerWorkload(LockWorkload):
    """Clients of a lock on a server. Each run uses a new lock, and therefore a new queue."""

    def prepare(self) -> Mapping[str, Job]:
        self.lock = f"stock {next(_numbers)}"
        self.sandbox.local_waits = False
        return super().prepare()

    def clean_up(self) -> None:
        self.sandbox.local_waits = True

    def job(self, name: str) -> Job:
        def job() -> str:
            try:
                client = self.sandbox.connect_thread(name).redis
                return self.tried_again(lambda: self.run_client(name, client))
            finally:
                if cast("Actor", current_actor()).crashed:
                    self.end_session(name)

        return job

    @abstractmethod
    def run_client(self, name: str, client: Any) -> str:
        """Run one client, and return its answer."""

    @abstractmethod
    def end_session(self, name: str) -> None:
        """End the session of a client that has crashed. Called in the client's thread."""
