"""Run schedules, written as text, on rungs (the lab's locks and ways of selling) with the lab's own scheduler."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lab.claims.runs import replay
from lab.explorer.run import STOP, Run, SchedulingPoint
from lab.explorer.scheduler import Scheduler
from lab.explorer.terms import FAULTS_OF_AN_ACTOR, Fault
from lab.explorer.trace import Trace
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.site.pages.replays import offered_faults
from lab.workloads.registry import new_experiment


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

        Impossible choices are skipped, so that a schedule of one rung also runs on its fix.

        Args:
            faults: the faults that may happen; by default, those that the rung's page offers.
            clients: number of clients; by default, as many as the rung needs.
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
        """Return the faults that break nothing. Try each at every point in the run of A; then B runs to its end."""
        broken: set[Fault] = set()
        for number, possible in enumerate(self._possible(slug, sorted(faults))):
            for fault in faults:
                choice = f"{fault} A" if fault in FAULTS_OF_AN_ACTOR else fault
                if fault not in broken and choice in possible:
                    run = self._run(slug, steps(f"A*{number}, {choice}, B*60"), fault)
                    assert choice in run.schedule
                    if run.broken:
                        broken.add(fault)
        return {*faults} - broken

    def _possible(self, slug: str, faults: Sequence[Fault]) -> list[set[str]]:
        """Run A alone, and return the possible choices before each of its steps and after the last."""
        possible: list[set[str]] = []

        def go_on(point: SchedulingPoint) -> str:
            possible.append({*point.enabled, *point.faults()})
            return "A" if "A" in point.enabled else STOP

        Scheduler(new_experiment(LADDER[slug], self.sandbox), go_on, faults=faults, goal=LADDER[slug].breaks).play()
        return possible

    def _run(self, slug: str, schedule: list[str], fault: Fault) -> Run:
        """Run the possible choices of a schedule, then every client to its end, and record no trace."""

        def choose(point: SchedulingPoint) -> str:
            while schedule:
                if (wanted := schedule.pop(0)) in point.enabled or wanted in point.faults():
                    return wanted
            return point.enabled[0]

        experiment = new_experiment(LADDER[slug], self.sandbox)
        return Scheduler(experiment, choose, faults=[fault], goal=LADDER[slug].breaks).play()
