"""The end of a load test: the verdict, counted from the tables."""

from __future__ import annotations

from typing import Any

from loadtest import burst as bursts
from loadtest.burst import Burst
from loadtest.tally import Tally


def verdict(burst: Burst, tally: Tally, *, host: str, clients: int) -> dict[str, Any]:
    """Everything that is worth saying of a burst. `sold`, `oversold` and `conserved` come from the tables.

    `errors` are attempts that never got an answer that counts; `busy` are answers that said "try again"; `missing`
    are orders that were answered with 201 or 202 and are not in the tables once the queue is empty.
    """
    bursts.wait_for_the_queue(burst)
    figures = bursts.figures(burst, host=host)
    return {
        "strategy": burst.rung or burst.strategy,
        "stock": burst.stock,
        "clients": clients,
        "attempted": tally.attempted,
        "sold": figures.sold,
        "refused": tally.refused,
        "errors": tally.errors,
        "oversold": figures.oversold,
        "conserved": figures.conserved,
        **tally.rates(),
        "busy": tally.busy,
        "answered": len(tally.orders) + tally.refused,
        "on_hand": figures.on_hand,
        "missing": bursts.missing(burst, tally.orders),
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether nothing was sold twice or lost: the conservation law, and every order that was promised."""
    return bool(result["conserved"] and not result["missing"])


def sentence(result: dict[str, Any]) -> str:
    """The verdict in a line."""
    if holds(result):
        return f"conserved: {result['sold']} of {result['stock']} sold, each once"
    reasons = [
        f"{result['oversold']} oversold" if result["oversold"] else "",
        f"{result['on_hand']} on hand" if result["on_hand"] < 0 else "",
        f"{result['missing']} orders missing" if result["missing"] else "",
    ]
    drift = result["stock"] - result["on_hand"] - result["sold"]
    if drift and not any(reasons):
        reasons.append(f"{drift} units unaccounted for")
    return f"BROKEN: {', '.join(reason for reason in reasons if reason)}"
