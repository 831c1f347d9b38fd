"""One client after the other, without faults: only rungs whose flaw needs no second client at work are broken."""

from __future__ import annotations

import pytest

from lab.claims.runs import replay
from lab.ladder.catalogue import LADDER
from lab.sandbox.sandbox import Sandbox
from lab.workloads.registry import can_play

pytestmark = pytest.mark.slow

PLAYABLE = [slug for slug, entry in LADDER.items() if can_play(entry)]
BROKEN_ALONE = frozenset[str]()
"""Rungs whose second client is treated wrongly although the first one is done."""


@pytest.mark.parametrize("slug", PLAYABLE)
def test_clients_one_after_the_other(sandbox: Sandbox, slug: str) -> None:
    trace = replay(slug, [], sandbox, to_the_end=True)
    assert trace.reached == (slug in BROKEN_ALONE), trace.why
    if slug not in BROKEN_ALONE:
        assert trace.ended
