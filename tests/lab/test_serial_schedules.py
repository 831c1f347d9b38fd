"""One client runs after the other, without faults. Only rungs whose flaw needs no concurrency break."""

from __future__ import annotations

from itertools import groupby

import pytest

from lab.claims.runs import replay
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import can_play

pytestmark = pytest.mark.slow

PLAYABLE = [slug for slug, entry in LADDER.items() if can_play(entry)]
BROKEN_ALONE = {
    "wrong-argument",
    "owner-as-text",
    "commit-after-return",
    "refusal-swallowed",
    "exception-leaves-the-lock",
    "segmented-keys",
    "lua-off-by-one",
    "decr-and-look-at-the-sign",
    "duplicate-click",
}
"""Rungs that treat the second client wrongly although the first one is done."""


@pytest.mark.parametrize("slug", PLAYABLE)
def test_clients_one_after_the_other(sandbox: Sandbox, slug: str) -> None:
    trace = replay(slug, [], sandbox, to_the_end=True)
    assert trace.reached == (slug in BROKEN_ALONE), trace.why
    if slug not in BROKEN_ALONE:
        turns = [name for name, _steps in groupby(step.actor for step in trace.steps if step.actor)]
        assert sorted(turns) == sorted(set(turns))
        assert trace.ended


def test_the_same_steps_in_another_order_break_a_rung(sandbox: Sandbox) -> None:
    assert replay("no-lock", ["A", "B", "B", "A"], sandbox, to_the_end=True).reached
