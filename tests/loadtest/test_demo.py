"""How often the demo lets a burst come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from loadtest.management.commands.demo import BURSTS, until_broken
from loadtest.rush import Rush


@dataclass(frozen=True, kw_only=True)
class Told(Rush):
    """A burst whose verdicts are given."""

    verdicts: list[bool]

    def run(self, url: str, *, progress: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
        return {"strategy": self.name, "conserved": self.verdicts.pop(0), "missing": 0, "unserved": 0}


@pytest.mark.parametrize(
    ("seller", "verdicts", "conserved", "bursts"),
    [
        pytest.param({"rung": "subtract-in-sql"}, [False, True], False, 1, id="a flawed one that breaks at once"),
        pytest.param({"rung": "subtract-in-sql"}, [True, True, False, True], False, 3, id="one that was lucky twice"),
        pytest.param({"rung": "subtract-in-sql"}, [True] * 9, True, BURSTS, id="one that never breaks"),
        pytest.param({"strategy": "lua"}, [True, False], True, 1, id="a sound one"),
        pytest.param({"strategy": "lua"}, [False, True], False, 1, id="a sound one that breaks"),
    ],
)
def test_a_flawed_one_has_bursts_until_it_breaks_and_a_sound_one_has_one(
    seller: dict[str, str], verdicts: list[bool], conserved: bool, bursts: int
) -> None:
    result = until_broken(Told(**seller, verdicts=list(verdicts)), "", progress=lambda _: None)

    assert (result["conserved"], result["bursts"]) == (conserved, bursts)
