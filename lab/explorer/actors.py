"""The actors of one run: start them, wait until all have stopped or wait in a server, kill them."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from lab.explorer.actor import Actor, State
from lab.explorer.experiment import Environment, Watchdog
from lab.explorer.terms import Job

POLL = 0.002
"""Seconds without a report of any actor. After that, the servers are asked which running actors wait in them."""
RESPONSE_TIMEOUT = 20.0
"""Seconds within which all actors must stop, wait in a server or end. Otherwise the run fails with `Stuck`."""
WAITING = (State.LISTENING, State.BLOCKED)


class Stuck(RuntimeError):
    """An actor runs for too long: it neither stops before a step nor waits in a server."""


class Actors:
    """All actors of one run: clients, helpers and watchdog threads.

    Args:
        environment: the servers in which the actors take their steps.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._by_name: dict[str, Actor] = {}
        self._reports: SimpleQueue[Actor] = SimpleQueue()

    def __getitem__(self, name: str) -> Actor:
        return self._by_name[name]

    def get(self, name: str) -> Actor | None:
        """Return the actor with this name, or None."""
        return self._by_name.get(name)

    def all(self) -> Sequence[Actor]:
        """Return every actor, in the order in which they were added."""
        return list(self._by_name.values())

    def living(self) -> Sequence[Actor]:
        """Return the actors that are not done."""
        return [actor for actor in self._by_name.values() if actor.state is not State.DONE]

    def add(self, name: str, job: Job, watchdog: Watchdog, works_for: str = "") -> Actor:
        """Add an actor without starting it."""
        actor = Actor(name, job, self._reports, self._environment.clock, watchdog, works_for)
        self._by_name[name] = actor
        return actor

    def renewing(self, works_for: str = "") -> list[Actor]:
        """Return the watchdog threads that are about to renew a lease: of one actor, or by default of all actors."""
        return [actor for actor in self.living() if actor.works_for and works_for in ("", actor.works_for)]

    def answers(self) -> dict[str, str]:
        """Return the answer of each client and helper that is done, by name."""
        clients = [actor for actor in self._by_name.values() if not actor.works_for]
        return {actor.name: actor.answer for actor in clients if actor.answer is not None}

    def blocked(self) -> tuple[str, ...]:
        """Return the names of the actors that wait in a server for another actor."""
        return tuple(actor.name for actor in self._by_name.values() if actor.state is State.BLOCKED)

    def wake(self) -> None:
        """Wake all actors after a change that any of them may notice. Sleepers check again, and expired waits end."""
        now = self._environment.clock.now
        for actor in self._by_name.values():
            actor.asleep = False
            if actor.listens_to is not None and actor.wakes_at <= now:
                actor.timed_out = True

    def wait_until_quiescent(self) -> None:
        """Return when no actor runs: each has stopped, is done, or waits in a server for another actor.

        Raises:
            Stuck: no such state is reached within `RESPONSE_TIMEOUT` seconds.
        """
        until = time.monotonic() + RESPONSE_TIMEOUT
        while True:
            while running := [actor for actor in self._started() if actor.state is State.RUNNING]:
                if not self._wait_for_report(until, POLL):
                    for actor in running:
                        if actor.state is State.RUNNING and self._environment.is_blocked(actor):
                            actor.mark_blocked(blocked=True)
            # Ask the servers again: the last step may have ended the wait of an actor.
            waiting = [actor for actor in self._started() if actor.state in WAITING]
            if len(waiting) == sum(map(self._still_waits, waiting)):
                return

    def kill(self, actor: Actor) -> None:
        """Crash an actor. Return when its thread has ended and the servers have dropped its connections."""
        waits = actor.state in (State.RUNNING, State.BLOCKED) and actor.listens_to is None
        actor.crash()
        if waits:
            self._environment.terminate(actor)
        until = time.monotonic() + RESPONSE_TIMEOUT
        while actor.state is not State.DONE:
            self._wait_for_report(until)
        self._environment.disconnect(actor)

    def kill_all(self) -> None:
        """Crash every actor that is not done."""
        living = [actor for actor in self._started() if actor.state is not State.DONE]
        # Mark all living actors as crashed before the first one is killed. Otherwise an actor that waits for a lock
        # would get the lock when the holder is killed.
        for actor in living:
            actor.crashed = True
        for actor in living:
            self.kill(actor)

    def _still_waits(self, actor: Actor) -> bool:
        blocked = not actor.timed_out and self._environment.is_blocked(actor)
        actor.mark_blocked(blocked=blocked)
        return blocked

    def _started(self) -> list[Actor]:
        return [actor for actor in self._by_name.values() if actor.thread.ident]

    def _wait_for_report(self, until: float, seconds: float = 0.05) -> bool:
        try:
            self._reports.get(timeout=seconds)
        except Empty:
            if time.monotonic() > until:
                stacks = "".join(map(_stack, self._started()))
                raise Stuck(f"An actor has neither stopped nor blocked in a server. All actors: {stacks}") from None
            return False
        return True


def _stack(actor: Actor) -> str:
    frame = sys._current_frames().get(actor.thread.ident or 0)
    return f"{actor!r}\n{''.join(traceback.format_stack(frame)) if frame else ''}"
