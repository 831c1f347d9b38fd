"""Decide to which row of the choice the five answers lead, and why."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from lab.site.choice.questions import Answers
from lab.site.choice.rows import BY_SLUG, ChoiceRow

SQL = ("redis", "postgres")
"""Of the answers about servers, those that include Postgres."""
USABLE = {
    **dict.fromkeys(("guarded-update", "database-row", "unique-insert", "advisory", "optimistic", "group-commit"), SQL),
    **dict.fromkeys(("lua", "queue", "segmented"), ("redis",)),
    **dict.fromkeys(("redis-lock", "redisson"), ("redis", "only-redis", "several-redis")),
    **dict.fromkeys(("zookeeper", "curator"), ("zookeeper",)),
    "redlock": ("several-redis",),
    "etcd": ("etcd",),
}
"""For each row that needs a server: the answers about servers that allow this row.

The other rows need no server.
"""
SERVERS = {
    **dict.fromkeys(USABLE, gettext_noop("Postgres")),
    **dict.fromkeys(("lua", "queue", "segmented"), gettext_noop("Redis beside Postgres")),
    **dict.fromkeys(("redis-lock", "redisson"), gettext_noop("Redis")),
    **dict.fromkeys(("zookeeper", "curator"), gettext_noop("ZooKeeper")),
    "redlock": gettext_noop("several independent Redis servers"),
    "etcd": gettext_noop("etcd"),
}
"""The servers that each row needs, as words of a sentence."""
LOCAL = ("thread-lock", "file-lock")

BECAUSE = {
    "guarded-update": gettext_noop(
        "One statement checks the stock and takes it, so nobody can get in between and there is nothing to unlock."
    ),
    "group-commit": gettext_noop(
        "Those who wait for the same row are saved together in one transaction, so each costs the row less."
    ),
    "queue": gettext_noop("Redis accepts the order at once, and workers save many orders in one transaction later."),
    "lua": gettext_noop("Redis refuses those who come too late, so most never reach the row in Postgres."),
    "thread-lock": gettext_noop("All are in one process, so a lock in its memory is enough and needs no server."),
    "file-lock": gettext_noop(
        "All are on one machine, so its kernel can hold the lock, and frees it if a holder dies."
    ),
    "segmented": gettext_noop(
        "Each order takes one of several locks, so several orders run at once. The stock must be divisible."
    ),
    "database-row": gettext_noop(
        "It needs no server but Postgres, and each grant has a fence that your data can check."
    ),
    "advisory": gettext_noop("It needs no table and no other server, and is free when its holder’s connection ends."),
    "redis-lock": gettext_noop("It wakes its waiters in order, and each grant has a fence that your data can check."),
    "redlock": gettext_noop("It goes on while a minority of the servers is lost, and a rare mistake costs only time."),
    "zookeeper": gettext_noop("No failover grants it twice, and each grant has a fence that your data can check."),
    "etcd": gettext_noop("No failover grants it twice, and each grant has a fence that your data can check."),
}
"""For each row that can be the answer: the reason that the page gives for it."""


def decide(answers: Answers) -> ChoiceRow:
    """Return the row to which the answers lead."""
    return BY_SLUG[_slug(answers)]


def servers_to_run(answers: Answers) -> str:
    """Return the answer about servers. If it is `none`, but several machines need a server, return `postgres`."""
    return "postgres" if answers.servers == "none" and answers.where == "machines" else answers.servers


def _slug(answers: Answers) -> str:
    servers = servers_to_run(answers)
    # One statement that checks and takes the stock is safe, even if other clients are late, paused or cut off.
    if answers.work != "steps" and servers in SQL:
        if answers.heat == "few":
            return "guarded-update"
        if servers == "redis" and answers.work == "queued":
            return "queue"
        return "lua" if servers == "redis" and answers.heat == "rush" else "group-commit"
    if answers.where == "process":
        return "thread-lock"
    if answers.where == "machine":
        return "file-lock"
    if servers == "several-redis":
        return "redlock" if answers.mistake == "time" else "redis-lock"
    if servers == "redis" and answers.heat == "rush":
        return "segmented"
    own = {"postgres": "database-row" if answers.mistake == "money" else "advisory"}
    return {**own, "zookeeper": "zookeeper", "etcd": "etcd"}.get(servers, "redis-lock")


def because(answers: Answers) -> list[str]:
    """Return why the answers lead to their row, and what must be done in addition, in the reader's language."""
    row = decide(answers)
    said = [_(BECAUSE[row.slug])]
    if servers_to_run(answers) != answers.servers:
        start = _("Start {server} for it: machines know of each other only through a server.")
        said.append(start.format(server=_(SERVERS[row.slug])))
    if answers.mistake == "money" and row.fenced:
        said.append(_("Let your data refuse a fence lower than the highest it has seen: no lock is enough alone."))
    if row.slug == "queue":
        said.append(_("Redis must sync its log to disk (appendfsync always): if it loses data, orders are lost."))
    return said
