"""The path "Your first ten minutes": five locks of the ladder, up to the fence. The visitor schedules their steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.utils.translation import gettext_noop

from lab.checkers.counter import OVERTAKEN, SOLD
from lab.explorer.terms import Fault
from lab.explorer.trace import Trace

KEY = "rung:stock"
"""The Redis key that stores the lock, for those locks of this path that have only one key."""


@dataclass(frozen=True)
class PathGoal:
    """One thing that the visitor should make happen.

    Attributes:
        text: what should happen.
        hint: the choices that reach the goal. The page shows them on request.
        reached: returns whether a trace has reached the goal. Further steps never undo it.
        choices: number of choices of the station's schedule after which the goal is reached.
    """

    text: str
    hint: str
    reached: Callable[[Trace], bool]
    choices: int


@dataclass(frozen=True)
class Station:
    """A lock on the path, with a story and goals.

    Attributes:
        slug: slug of the rung.
        story: three sentences before any code.
        goals: the goals, in order.
        moral: the result that the visitor has shown, and the change in the next station.
        schedule: a schedule that reaches every goal.
        faults: the faults that the visitor may choose.
    """

    slug: str
    story: tuple[str, str, str]
    goals: tuple[PathGoal, ...]
    moral: str
    schedule: tuple[str, ...]
    faults: tuple[Fault, ...] = ()

    def goals_reached(self, trace: Trace) -> int:
        """Return how many goals a trace has reached in order. A goal counts only if all goals before it are reached."""
        reached = 0
        for goal in self.goals:
            if not goal.reached(trace):
                break
            reached += 1
        return reached


def _broken(trace: Trace) -> bool:
    return trace.reached


def _two_read_before_a_write(trace: Trace) -> bool:
    readers = set()
    for step in trace.steps:
        if step.does.startswith("SET stock"):
            break
        if step.does == "GET stock":
            readers.add(step.actor)
    return len(readers) > 1


def _crash_leaves_the_lock(trace: Trace) -> bool:
    return any(
        step.choice.startswith("crash ") and any(stored["name"] == KEY for stored in step.state) for step in trace.steps
    )


def _refused_twice_after_the_crash(trace: Trace) -> bool:
    crash = next((place for place, step in enumerate(trace.steps) if step.choice.startswith("crash ")), None)
    return crash is not None and sum(step.does.startswith("SETNX") for step in trace.steps[crash:]) > 1


def _late_release(trace: Trace) -> bool:
    return any(step.choice == "late release" for step in trace.steps)


def _lock_of_another_is_freed(trace: Trace) -> bool:
    return any(step.does.startswith("DEL ") and step.holders and step.actor not in step.holders for step in trace.steps)


def _expired(trace: Trace) -> bool:
    return any(step.choice == "expiry" for step in trace.steps)


def _paused(trace: Trace) -> bool:
    return any(step.choice.startswith("pause ") for step in trace.steps)


def _another_sells_during_the_pause(trace: Trace) -> bool:
    paused = ""
    for step in trace.steps:
        if step.choice.startswith("pause "):
            paused = step.choice.removeprefix("pause ")
        if paused and any(name != paused and answer == SOLD for name, answer in step.answers.items()):
            return paused not in step.answers
    return False


def _refused_by_the_store(trace: Trace) -> bool:
    return any(OVERTAKEN in step.answers.values() for step in trace.steps)


STATIONS = (
    Station(
        "no-lock",
        (
            gettext_noop("A shop has ten units, and two buyers, A and B, each want one."),
            gettext_noop("Selling takes two commands: read how many are left, then write one less."),
            gettext_noop("The server runs one command at a time, and you decide whose command is next."),
        ),
        (
            PathGoal(
                gettext_noop("Let both buyers read before either of them writes."),
                gettext_noop(
                    "Choose A once, then B once. If one has written already, undo and let the other read first."
                ),
                _two_read_before_a_write,
                2,
            ),
            PathGoal(
                gettext_noop("Now let both of them write."),
                gettext_noop("Choose A and B until both are done. Each writes the number that it has read, less one."),
                _broken,
                4,
            ),
        ),
        gettext_noop(
            "Two units are sold, and the stock is down by one: the second write has overwritten the first. Between the "
            "read and the write, nobody else may read. That is what a lock is for."
        ),
        ("A", "B", "B", "A"),
    ),
    Station(
        "setnx",
        (
            gettext_noop("Now there is a lock: a key on the server, which only one client can create."),
            gettext_noop(
                "The client that creates the key may sell, and deletes the key afterwards; all others ask again."
            ),
            gettext_noop("A process can die at any moment, also while it holds the lock."),
        ),
        (
            PathGoal(
                gettext_noop("Let A get the lock, and then let its process crash."),
                gettext_noop("Choose A once: its command creates the key. Then choose the crash of A."),
                _crash_leaves_the_lock,
                2,
            ),
            PathGoal(
                gettext_noop("Let B ask for the lock twice."),
                gettext_noop("Choose B until it has asked, slept, and asked again."),
                _refused_twice_after_the_crash,
                5,
            ),
        ),
        gettext_noop(
            "Nobody holds the lock, yet B asks forever: the key is still there, and the process that would delete it "
            "is gone. So the lock needs an end of its own: a time to live, or TTL."
        ),
        ("A", "crash A", "B", "B", "B"),
        ("crash",),
    ),
    Station(
        "set-nx-ex",
        (
            gettext_noop("The key now has a TTL of thirty seconds, so a dead holder blocks nobody for long."),
            gettext_noop("A holder that is done deletes the key, as before."),
            gettext_noop("But a slow holder can be late: its thirty seconds are over, and it does not know."),
        ),
        (
            PathGoal(
                gettext_noop("Let A sell its unit, and let the TTL pass before A deletes the key."),
                gettext_noop("Choose A three times: lock, read, write. Then choose the late release."),
                _late_release,
                4,
            ),
            PathGoal(
                gettext_noop("Let B get the lock, and then let A delete the key."),
                gettext_noop("Choose B once, then A once. B must not be done before A deletes the key."),
                _lock_of_another_is_freed,
                6,
            ),
            PathGoal(
                gettext_noop("Bring C in, while B is still inside."),
                gettext_noop("Choose C once: it finds no key."),
                _broken,
                7,
            ),
        ),
        gettext_noop(
            "A has deleted the key of B, and C came in beside B. The key says that somebody holds the lock, but not "
            "who. So each holder writes a name of its own, and deletes the key only if it finds that name."
        ),
        ("A", "A", "A", "late release", "B", "A", "C"),
        ("late release",),
    ),
    Station(
        "lua-release",
        (
            gettext_noop("Each holder now writes a name of its own into the key."),
            gettext_noop("A script on the server deletes the key only if that name is still in it."),
            gettext_noop("The release is right; the TTL is still a guess about how long the work takes."),
        ),
        (
            PathGoal(
                gettext_noop("Let A get the lock, and let its TTL pass while A is still at work."),
                gettext_noop("Choose A once, then the expiry."),
                _expired,
                2,
            ),
            PathGoal(
                gettext_noop("Bring B in, while A is still inside."),
                gettext_noop("Choose B until it has the lock. Do not choose A: it must not finish first."),
                _broken,
                3,
            ),
        ),
        gettext_noop(
            "Both are inside, and neither has done anything wrong. A longer TTL or a watchdog that renews it makes "
            "this rarer, but a process can always stand still for longer. A lock alone cannot prevent that: the store "
            "must."
        ),
        ("A", "expiry", "B"),
        ("expiry",),
    ),
    Station(
        "fence",
        (
            gettext_noop("With each lock the client now gets a number, its fence, which is higher than all before."),
            gettext_noop("The client shows its fence with each read and each write."),
            gettext_noop("The store remembers the highest fence that it has seen, and refuses every lower one."),
        ),
        (
            PathGoal(
                gettext_noop("Let A get the lock and read, and then pause A for longer than its TTL."),
                gettext_noop("Choose A twice, then the pause of A."),
                _paused,
                3,
            ),
            PathGoal(
                gettext_noop("Let B get the lock and sell a unit, while A stands still."),
                gettext_noop(
                    "Choose B until B is done. B sent its first request before the pause, so that lease has already "
                    "expired: B releases it and asks again. A must not finish first."
                ),
                _another_sells_during_the_pause,
                9,
            ),
            PathGoal(
                gettext_noop("Wake A: let it try to overwrite what B has written."),
                gettext_noop("Choose A until A is done."),
                _refused_by_the_store,
                11,
            ),
        ),
        gettext_noop(
            "The store has refused A: its fence was too old. A sees the refusal and can start again, and no unit is "
            "sold twice. A search has tried the schedules of this rung, and found none that breaks it."
        ),
        ("A", "A", "pause A", "B", "B", "B", "B", "B", "B", "A", "A"),
        ("pause",),
    ),
)
PLAIN_STEPS = (
    ("GET stock", gettext_noop("read how many are left")),
    ("SET stock ", gettext_noop("write the new number")),
    ("SETNX ", gettext_noop("ask for the lock")),
    ("SET rung:stock ", gettext_noop("ask for the lock")),
    ("DEL ", gettext_noop("release the lock")),
    ("EVAL (1 if the lock was the owner's", gettext_noop("release the lock, if it is still its own")),
    ("acquire.lua", gettext_noop("ask for the lock and a fence")),
    ("EVAL (the stock, or false", gettext_noop("read how many are left, and show the fence")),
    ("EVAL (1 if it was written", gettext_noop("write the new number, and show the fence")),
    ("release.lua", gettext_noop("release the lock, if it is still its own")),
    ("leave.lua", gettext_noop("stop waiting")),
    ("BLPOP", gettext_noop("wait until the lock is free")),
    ("sleeps", gettext_noop("wait a moment, then ask again")),
)
"""The steps of this path in plain words, by the beginning of their command."""


def station_of(slug: str) -> Station | None:
    """Return the station of a lock. None if the lock is not on the path."""
    return next((station for station in STATIONS if station.slug == slug), None)


def plain(does: str) -> str:
    """Return the plain English words for a step. Empty if there are none."""
    return next((text for beginning, text in PLAIN_STEPS if does.startswith(beginning)), "")
