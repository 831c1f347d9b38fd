"""Clients that queue for a lock on a server: ZooKeeper or etcd.

The session of a client ends at once when it crashes; on real servers it would take the session's timeout.
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
"""Seconds within which a server must do what usually takes milliseconds."""
QUEUE = "queue"
"""The name that the steps touch."""

_numbers = count(1)


class LockServerWorkload(LockWorkload):
    """Each run has its own lock, and therefore its own queue."""

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
        """End the session of a client that has crashed. Called in its thread."""
