"""Celery's beat goes on at once when the clock is set back. It does not wait until the clock catches up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import schedules

from shop.runtime import broker
from shop.runtime.broker import QuietScheduler
from shop.runtime.celery import app

HOUR = 3600.0


class Machine:
    """A machine's clocks, which a test can set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(1_800_000_000 + self.ahead, UTC)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(type(app), "now", lambda _: machine.now())
    monkeypatch.setattr(schedules.BaseSchedule, "now", lambda _: machine.now())
    clock = SimpleNamespace(time=lambda: machine.now().timestamp(), monotonic=lambda: 0.0)
    monkeypatch.setattr(broker, "time", clock)
    return machine


def scheduler(file: Path, sent: list[str]) -> QuietScheduler:
    made = QuietScheduler(app, schedule_filename=str(file), lazy=True)
    made.apply_entry = lambda entry, **_: sent.append(entry.task)
    made.setup_schedule()
    made.Entry._default_now = lambda entry: app.now()
    return made


def send_due(scheduler: QuietScheduler) -> None:
    for _ in range(20):
        scheduler.tick()


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture
def running(tmp_path: Path, machine: Machine, sent: list[str]) -> Iterator[QuietScheduler]:
    made = scheduler(tmp_path / "schedule", sent)
    for entry in made.schedule.values():
        entry.last_run_at = machine.now()
    yield made
    made.close()


def advances(sent: list[str]) -> int:
    return sum("advance_sales" in task for task in sent)


@pytest.mark.parametrize("guarded", [True, False])
def test_tasks_are_sent_after_the_clock_was_set_back(
    running: QuietScheduler, machine: Machine, sent: list[str], monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:  # negative control
        monkeypatch.setattr(QuietScheduler, "_forget_times_to_come", lambda _: None)
    send_due(running)
    assert advances(sent) == 0
    machine.ahead -= HOUR
    send_due(running)
    machine.ahead += timedelta(seconds=6).total_seconds()
    send_due(running)
    assert advances(sent) == guarded


def test_a_start_forgets_times_to_come(tmp_path: Path, machine: Machine, sent: list[str]) -> None:
    """A start forgets run times in the future, which the schedule's file would otherwise keep."""
    before = scheduler(tmp_path / "schedule", sent)
    for entry in before.schedule.values():
        entry.last_run_at = machine.now()
    before.close()
    machine.ahead -= HOUR
    after = scheduler(tmp_path / "schedule", sent)
    assert {entry.last_run_at for entry in after.schedule.values()} == {machine.now()}
    after.close()
