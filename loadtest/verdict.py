"""The verdict on a burst: whether every unit was sold at most once and no order was lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadtest import outcome
from loadtest.burst import Burst
from loadtest.results import Results

Verdict = dict[str, Any]


class NoVerdict(Exception):
    """There is no verdict on a burst. The message says why, and what to do."""


def compute_verdict(burst: Burst, results: Results, *, host: str, clients: int) -> Verdict:
    """Return all figures of a burst. `sold`, `oversold` and `conserved` are counted from the tables.

    - `errors`: buyers that received neither an order nor a refusal
    - `busy`: answers that asked the buyer to retry
    - `missing`: orders confirmed with 201 or 202 that are not in the tables once the queue is empty
    - `rejected`: orders that were queued and then rejected
    - `unserved`: refused or rejected carts that the remaining stock could serve; nobody cancels during a burst

    Raises:
        NoVerdict: confirmed orders are not in the tables, but workers may still save them, because the queue is not
            empty.
    """
    queued, missing = outcome.wait_for_queue(burst), outcome.count_missing(burst, results.orders)
    if queued and missing:
        raise NoVerdict(
            f"{missing} orders were confirmed but not saved, and {queued} wait in the queue. Start Celery's worker "
            "(`celery -A shop worker --pool threads`), and run the burst again"
        )
    figures, rejected = outcome.stock_figures(burst, host=host), outcome.rejected_carts(burst)
    left = {row.sku: row.on_hand for row in figures}
    return {
        "strategy": burst.rung or burst.strategy,
        "stock": burst.stock * len(figures),
        "clients": clients,
        "attempted": results.attempted,
        "sold": sum(row.sold for row in figures),
        "refused": results.refused,
        "errors": results.errors,
        "oversold": sum(row.oversold for row in figures),
        "conserved": all(row.conserved for row in figures),
        **results.rates(),
        "busy": results.busy,
        "answered": len(results.orders) + results.refused,
        "on_hand": sum(left.values()),
        "missing": missing,
        "rejected": len(rejected),
        "unserved": count_unserved([*results.refused_carts, *rejected], left),
    }


def count_unserved(carts: Iterable[Mapping[str, int]], left: Mapping[str, int]) -> int:
    """Return how many of the refused carts the remaining stock could serve, one cart after the other."""
    remaining, unserved = dict(left), 0
    for cart in carts:
        if all(remaining[sku] >= units for sku, units in cart.items()):
            unserved += 1
            remaining = {sku: units - cart.get(sku, 0) for sku, units in remaining.items()}
    return unserved


def holds(verdict: Verdict) -> bool:
    """Return whether stock is conserved, every confirmed order exists and every refusal was justified."""
    return bool(verdict["conserved"] and not verdict["missing"] and not verdict["unserved"])


def summarize(verdict: Verdict) -> str:
    """Return the verdict as one line."""
    if holds(verdict):
        errors = verdict["errors"]
        unanswered = f"; {errors} {'buyer' if errors == 1 else 'buyers'} received no answer" if errors else ""
        return f"conserved: {verdict['sold']} of {verdict['stock']} sold, each once{unanswered}"
    reasons = [
        f"{verdict['oversold']} oversold" if verdict["oversold"] else "",
        f"{verdict['on_hand']} on hand" if verdict["on_hand"] < 0 else "",
        f"{verdict['missing']} orders missing" if verdict["missing"] else "",
        f"{verdict['unserved']} refused although enough units were left" if verdict["unserved"] else "",
    ]
    drift = verdict["stock"] - verdict["on_hand"] - verdict["sold"]
    if drift and not any(reasons):
        reasons.append(f"{drift} units unaccounted for")
    return f"BROKEN: {', '.join(reason for reason in reasons if reason)}"
