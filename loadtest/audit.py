"""The end of a load test: the verdict, counted from the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadtest import burst as bursts
from loadtest.burst import Burst
from loadtest.results import Results


def verdict(burst: Burst, tally: Results, *, host: str, clients: int) -> dict[str, Any]:
    """Everything that is worth saying of a burst. `sold`, `oversold` and `conserved` come from the tables.

    `errors` are attempts that never got an answer that counts; `busy` are answers that said "try again"; `missing`
    are orders that were answered with 201 or 202 and are not in the tables once the queue is empty; `rejected` are
    those that are there, but were sold nothing after all; `unserved` are buyers who were told that it is sold out, or
    were rejected, with enough for them on hand at the end, when nobody can have given it back.
    """
    bursts.wait_for_the_queue(burst)
    figures, rejected = bursts.figures(burst, host=host), bursts.rejected(burst)
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
        "rejected": len(rejected),
        "unserved": unserved([*tally.refused_carts, *rejected], left),
    }


def unserved(carts: Iterable[Mapping[str, int]], left: Mapping[str, int]) -> int:
    """How many of the refused carts what is left would have served, one after the other."""
    still, served = dict(left), 0
    for cart in carts:
        if all(still[sku] >= units for sku, units in cart.items()):
            served += 1
            still = {sku: units - cart.get(sku, 0) for sku, units in still.items()}
    return served


def holds(result: dict[str, Any]) -> bool:
    """Whether nothing was sold twice, lost or kept back: the conservation law, every promised order, every refusal."""
    return bool(result["conserved"] and not result["missing"] and not result["unserved"])


def sentence(result: dict[str, Any]) -> str:
    """The verdict in a line."""
    if holds(result):
        errors = result["errors"]
        unanswered = f"; {errors} {'buyer was' if errors == 1 else 'buyers were'} never answered" if errors else ""
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
