"""The help text for the choice of a strategy in the form of a sale, in the words of README.md."""

from __future__ import annotations

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from inventory.strategies import registry

IN_POSTGRES = "you want `redis-lock` without Redis"
ELSEWHERE = "you run those servers anyway"
CHOOSE_WHEN = {
    "group-commit": "you have no reason for another one (the default)",
    "guarded-update": "many products with few customers each",
    "lua": "Redis should keep late customers away from Postgres",
    "lua-queue": 'the answer may be "queued" and should not wait for Postgres',
    "optimistic": "many products, few customers for each",
    "row-lock": "the decision is too complex for a `WHERE` clause",
    "advisory-lock": "as `row-lock`, when no row exists that could be locked",
    "unit-rows": "the transactions are long",
    "redis-lock": "the critical section does more than SQL",
    "segmented-lock": "one `redis-lock` is too slow",
    "segmented-redis": "you want to compare it with `lua`, which does this without locks",
    "insert-lock": IN_POSTGRES,
    "lock-table": IN_POSTGRES,
    "session-lock": IN_POSTGRES,
    "file-lock": "all web processes run on one machine",
    "redlock": ELSEWHERE,
    "etcd-lock": ELSEWHERE,
    "zookeeper-lock": ELSEWHERE,
}
"""When to choose a strategy, by its name. A test compares these texts with the table in README.md."""


def help_text() -> SafeString:
    """Return the help text for the strategies that this installation offers."""
    lines = ((name, CHOOSE_WHEN[name].replace("`", "")) for name in CHOOSE_WHEN if name in registry.NAMES)
    return format_html(
        "How stock is taken. It is fixed once the sale is preheated. <details>"
        '<summary class="cursor-pointer text-primary-600 dark:text-primary-500">When to choose which</summary>'
        "<ul>{}</ul></details>",
        format_html_join("", "<li><strong>{}</strong>: {}</li>", lines),
    )
