"""How often the demo repeats a burst."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from loadtest.demo import MAX_BURSTS, run_until_broken
from loadtest.rush import OnProgress, Rush


@dataclass(frozen=True, kw_only=True)
class ScriptedRush(Rush):
    """A burst with given verdicts."""

    verdicts: list[bool]

    def run(self, url: str, *, progress: OnProgress = lambda _: None) -> dict[str, Any]:
        return {"strategy": self.name, "conserved": self.verdicts.pop(0), "missing": 0, "unserved": 0}


@pytest.mark.parametrize(
    ("seller", "verdicts", "conserved", "bursts"),
    [
        pytest.param({"rung": "subtract-in-sql"}, [False, True], False, 1, id="flawed, breaks at once"),
        pytest.param({"rung": "subtract-in-sql"}, [True, True, False, True], False, 3, id="flawed, lucky twice"),
        pytest.param({"rung": "subtract-in-sql"}, [True] * 9, True, MAX_BURSTS, id="flawed, never breaks"),
        pytest.param({"strategy": "lua"}, [True, False], True, 1, id="sound"),
        pytest.param({"strategy": "lua"}, [False, True], False, 1, id="sound, breaks"),
    ],
)
def test_only_a_flawed_rung_gets_more_bursts(
    seller: dict[str, str], verdicts: list[bool], conserved: bool, bursts: int
) -> None:
    verdict = run_until_broken(ScriptedRush(**seller, verdicts=list(verdicts)), "", progress=lambda _: None)
    assert (verdict["conserved"], verdict["bursts"]) == (conserved, bursts)
