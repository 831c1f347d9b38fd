"""A stored comparison, as small as one can be."""

from __future__ import annotations

from typing import Any

from lab.claims.staleness import behaviour_of_comparison

MACHINE = {"cpus": 2, "processor": "x86_64", "python": "3.11.7"}


def strategy(per_s: float, recovery_s: float | None) -> dict[str, Any]:
    made = {"orders_per_s": per_s, "p50_ms": 1000 / per_s, "p95_ms": 3000 / per_s, "client_min": 30, "client_max": 40}
    return made | ({} if recovery_s is None else {"recovery_s": recovery_s})


def lock(pair_us: float, handoff: float, greedy: tuple[int, int], recovery_s: float | None) -> dict[str, Any]:
    return {
        "pair_us": pair_us,
        "handoff_p50_ms": handoff,
        "handoff_p95_ms": 2 * handoff,
        "greedy_min": greedy[0],
        "greedy_max": greedy[1],
        "recovery_s": recovery_s,
    }


STORED: dict[str, Any] = {
    "strategies": {
        "made": "2026-01-31",
        "short": False,
        "source": behaviour_of_comparison("strategies"),
        "machine": MACHINE,
        "report": {
            "empty": {"requests_per_s": 2000.4},
            "peer:redis-py-lock": strategy(100.0, None),
            "strategies": {"redis-lock": strategy(250.0, 3.01), "guarded-update": strategy(1250.5, 0.02)},
        },
    },
    "locks": {
        "made": "2026-01-31",
        "short": False,
        "source": behaviour_of_comparison("locks"),
        "machine": MACHINE,
        "report": {
            "locks": {"redis": lock(250.0, 0.6, (31, 33), 9.9), "thread": lock(20.0, 0.1, (10, 10), None)},
            "peers": {"redis-py": lock(500.0, 51.0, (0, 99), 10.0)},
        },
    },
}
