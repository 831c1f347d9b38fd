"""When to choose which strategy, as README.md says it: the help of the form of a sale."""

from __future__ import annotations

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from inventory.strategies import registry

IN_POSTGRES = "stock must not depend on Redis"
ELSEWHERE = "you run those servers anyway"
CHOOSE_WHEN = {
    "group-commit": "you have no reason for another one (the default)",
    "guarded-update": "many products with few customers each",
    "lua": "Redis should keep late customers away from Postgres",
    "lua-queue": 'the answer may be "queued" and should not wait for Postgres',
    "optimistic": "many products, few customers for each",
    "row-lock": "the decision is too complex for a `WHERE` clause",
    "advisory-lock": "as `row-lock`, but there is no row to lock",
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
"""By the name of the strategy. A test compares it with the table in README.md."""


def help_text() -> SafeString:
    """Return the help for the strategies that a sale can choose here."""
    lines = ((name, CHOOSE_WHEN[name].replace("`", "")) for name in CHOOSE_WHEN if name in registry.NAMES)
    return format_html(
        "How stock is taken. It is fixed once the sale is preheated. <details>"
        '<summary class="cursor-pointer text-primary-600 dark:text-primary-500">When to choose which</summary>'
        "<ul>{}</ul></details>",
        format_html_join("", "<li><strong>{}</strong>: {}</li>", lines),
    )
