"""Schedules on rungs, written as text and run by the lab's own scheduler."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from lab.claims.runs import Impossible, replay
from lab.explorer.terms import FAULTS_OF_AN_ACTOR, Fault
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.site.pages.replays import offered_faults


def steps(schedule: str) -> list[str]:
    """Split `"A*3, crash A, B"` into the choices of a schedule: A, A, A, crash A, B."""
    choices: list[str] = []
    for part in schedule.split(", "):
        choice, _, times = part.partition("*")
        choices += [choice] * int(times or 1)
    return choices


@dataclass(frozen=True)
class Player:
    """Runs schedules on rungs in one sandbox."""

    sandbox: Sandbox

    def __call__(
        self, slug: str, schedule: Iterable[str], *, faults: Sequence[Fault] | None = None, clients: int | None = None
    ) -> Trace:
        """Run a schedule, and then every client to its end.

        Choices that are impossible on this rung are skipped, so that a schedule of one rung also runs on its fix.

        Args:
            slug: the rung.
            schedule: the choices, in order.
            faults: the faults that may happen. By default, those that the rung survives, that break it, or that break a
                rung it fixes.
            clients: number of clients. By default, as many as it takes to break the rung.
        """
        return replay(
            slug,
            list(schedule),
            self.sandbox,
            clients=clients,
            faults=offered_faults(LADDER[slug]) if faults is None else faults,
            to_the_end=True,
            as_far_as_possible=True,
        )

    def survived(self, slug: str, faults: Collection[Fault]) -> set[Fault]:
        """Return the faults that break nothing, whichever step of A they follow, when B goes on from there."""
        broken: set[Fault] = set()
        for number in count():
            try:
                choices = replay(slug, ["A"] * number, self.sandbox, faults=sorted(faults)).choices
            except Impossible:  # A has ended
                break
            for fault in faults:
                choice = f"{fault} A" if fault in FAULTS_OF_AN_ACTOR else fault
                if fault not in broken and choice in [possible.name for possible in choices]:
                    trace = self(slug, steps(f"A*{number}, {choice}, B*60"), faults=[fault])
                    assert choice in trace.schedule
                    if trace.broken:
                        broken.add(fault)
        return {*faults} - broken
