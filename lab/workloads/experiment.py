"""An experiment: a workload in a sandbox, the faults that may happen, and the checker of the invariants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.checkers.base import Checker
from lab.explorer.history import History
from lab.explorer.terms import Fault, Job, Violation
from lab.faults.leases import LeaseFaults
from lab.ladder.catalogue import LadderEntry
from lab.sandbox.clock import TTL
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.watchdogs import IN_THE_MODULES, SteppedWatchdog
from lab.workloads.base import Workload


class Experiment:
    """A workload, faults and a checker. It can run repeatedly. It implements `lab.explorer.experiment.Experiment`.

    Args:
        workload: the work of the clients.
        faults: the faults that may happen.
        checker: decides whether the invariants hold.
    """

    ttl = TTL

    def __init__(self, workload: Workload, faults: LeaseFaults, checker: Checker) -> None:
        self.workload = workload
        self.faults = faults
        self.checker = checker
        self.watchdogs: dict[str, SteppedWatchdog] = {}

    @property
    def entry(self) -> LadderEntry:
        return self.workload.entry

    @property
    def name(self) -> str:
        return self.entry.slug

    @property
    def names(self) -> Sequence[str]:
        return self.workload.names

    @property
    def interchangeable(self) -> bool:
        """Whether a search may exchange the clients, because all have the same job."""
        return self.workload.interchangeable

    @property
    def history(self) -> History:
        return self.workload.history

    @property
    def environment(self) -> Sandbox:
        return self.workload.sandbox

    def begin(self) -> Mapping[str, Job]:
        """Prepare the servers. Return the job of each actor, by name."""
        self.history.clear()
        self.environment.empty()
        IN_THE_MODULES.enter(self)
        jobs = self.workload.prepare()
        self.faults.watchdogs = self.watchdogs = {name: SteppedWatchdog() for name in jobs}
        return jobs

    def end(self) -> None:
        """Undo what `begin` has changed outside of the servers. Safe to call more than once."""
        for watchdog in self.watchdogs.values():
            watchdog.close()
        self.watchdogs.clear()
        IN_THE_MODULES.leave(self)
        self.workload.clean_up()

    def offers(self, fault: Fault, actor: str = "") -> bool:
        """Return whether a fault can happen now."""
        return self.faults.offers(fault, actor)

    def inject(self, fault: Fault, actor: str = "") -> None:
        """Make a fault happen."""
        self.faults.inject(fault, actor)

    def wake_watchdog(self, actor: str) -> None:
        """Let time pass until the watchdog of an actor has to renew its leases."""
        self.faults.wait_for_renewal()

    def crash(self, actor: str) -> None:
        """Record that an actor has crashed, and close its watchdog."""
        self.history.crash(actor)
        self.watchdogs[actor].close()

    def state(self) -> tuple[Mapping[str, Any], ...]:
        """Return the data on the servers, as text for people."""
        return self.workload.state()

    def verdict(self, answers: Mapping[str, str]) -> Sequence[Violation]:
        """Let the workload finish, and return every violation."""
        return self.checker.check(self.workload.finish(self._of_clients(answers)))

    def ledger(self, answers: Mapping[str, str]) -> Mapping[str, int]:
        """Return the final figures by name."""
        return self.checker.ledger(self._of_clients(answers))

    def _of_clients(self, answers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the answers of clients only, without those of helpers such as a queue's worker."""
        return {name: answer for name, answer in answers.items() if name in self.names}
