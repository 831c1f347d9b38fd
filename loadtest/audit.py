"""The end of a load test: the verdict, counted from the tables."""

from __future__ import annotations

from typing import Any

from loadtest import burst as bursts
from loadtest.burst import Burst
from loadtest.tally import Tally


def verdict(burst: Burst, tally: Tally, *, host: str, clients: int) -> dict[str, Any]:
    """Everything that is worth saying of a burst. `sold`, `oversold` and `conserved` come from the tables.

    `errors` are attempts that never got an answer that counts; `busy` are answers that said "try again"; `missing`
    are orders that were answered with 201 and are not in the tables; `unserved` are buyers who were told that it is
    sold out, with enough for them on hand at the end, when nobody can have given it back.
    """
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
        "unserved": min(tally.refused, max(0, figures.on_hand) // burst.quantity),
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether nothing was sold twice, lost or kept back: the conservation law, every promised order, every refusal."""
    return bool(result["conserved"] and not result["missing"] and not result["unserved"])


def sentence(result: dict[str, Any]) -> str:
    """The verdict in a line."""
    if holds(result):
        unanswered = f"; {result['errors']} buyers were never answered" if result["errors"] else ""
        return f"conserved: {result['sold']} of {result['stock']} sold, each once{unanswered}"
    reasons = [
        f"{result['oversold']} oversold" if result["oversold"] else "",
        f"{result['on_hand']} on hand" if result["on_hand"] < 0 else "",
        f"{result['missing']} orders missing" if result["missing"] else "",
        f"{result['unserved']} refused with units left for them" if result["unserved"] else "",
    ]
    drift = result["stock"] - result["on_hand"] - result["sold"]
    if drift and not any(reasons):
        reasons.append(f"{drift} units unaccounted for")
    return f"BROKEN: {', '.join(reason for reason in reasons if reason)}"
