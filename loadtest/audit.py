"""The end of a load test: the verdict, counted from the tables."""

from __future__ import annotations

from typing import Any

from loadtest import burst as bursts
from loadtest.burst import Burst
from loadtest.tally import Tally


def verdict(burst: Burst, tally: Tally, *, host: str, clients: int) -> dict[str, Any]:
    """Everything that is worth saying of a burst. `sold`, `oversold` and `conserved` come from the tables.

    `errors` are attempts that never got an answer that counts; `busy` are answers that said "try again"; `missing`
    are orders that were answered with 201 or 202 and are not in the tables once the queue is empty; `unjust` says
    whether somebody was told "sold out" whose whole cart is still there at the end.
    """
    bursts.wait_for_the_queue(burst)
    figures = bursts.figures(burst, host=host)
    left = {row.sku: row.on_hand for row in figures}
    return {
        "strategy": burst.rung or burst.strategy,
        "stock": burst.stock * len(figures),
        "clients": clients,
        "attempted": tally.attempted,
        "sold": sum(row.sold for row in figures),
        "refused": tally.refused,
        "errors": tally.errors,
        "oversold": sum(row.oversold for row in figures),
        "conserved": all(row.conserved for row in figures),
        **tally.rates(),
        "busy": tally.busy,
        "answered": len(tally.orders) + tally.refused,
        "on_hand": sum(left.values()),
        "missing": bursts.missing(burst, tally.orders),
        "unjust": any(all(left[sku] >= units for sku, units in cart.items()) for cart in tally.refused_carts),
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether nothing was sold twice, lost or held back: the conservation law, and every order that was promised."""
    return bool(result["conserved"] and not result["missing"] and not result["unjust"])


def sentence(result: dict[str, Any]) -> str:
    """The verdict in a line."""
    if holds(result):
        return f"conserved: {result['sold']} of {result['stock']} sold, each once"
    reasons = [
        f"{result['oversold']} oversold" if result["oversold"] else "",
        f"{result['on_hand']} on hand" if result["on_hand"] < 0 else "",
        f"{result['missing']} orders missing" if result["missing"] else "",
        f"told “sold out” with {result['on_hand']} left" if result["unjust"] else "",
    ]
    drift = result["stock"] - result["on_hand"] - result["sold"]
    if drift and not any(reasons):
        reasons.append(f"{drift} units unaccounted for")
    return f"BROKEN: {', '.join(reason for reason in reasons if reason)}"
