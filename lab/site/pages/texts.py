"""Texts of the pages about tracks and invariants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext_noop

from lab.explorer.terms import Invariant

# Import the catalogue for types only: it loads all locks, and template filters import this file in every process.
if TYPE_CHECKING:
    from lab.ladder.catalogue import Track

TRACKS: dict[Track, str] = {
    "locks": gettext_noop("Track one: the lock"),
    "stock": gettext_noop("Track two: the stock"),
}
MEANINGS: dict[Invariant, str] = {
    "conserved": gettext_noop("Units on hand and units sold add up to the units received."),
    "one holder": gettext_noop("At most one client is in the critical section."),
    "progress": gettext_noop("A client that may enter does so within a bounded time."),
    "no false refusal": gettext_noop("No customer is told “sold out” while enough units are left."),
    "once": gettext_noop("A request that was confirmed is carried out once, however often it is sent."),
}
"""The meaning of each invariant."""
GOALS: dict[Invariant, str] = {
    "conserved": gettext_noop(
        "Make the figures disagree: the number of confirmed sales must differ from the number of units taken."
    ),
    "one holder": gettext_noop("Get two clients into the critical section at the same time."),
    "progress": gettext_noop("Leave a client waiting although no other client is in the critical section."),
    "no false refusal": gettext_noop("Get a customer told “sold out” while enough units are left."),
    "once": gettext_noop("Make one purchase count twice, or not at all."),
}
"""The task of a visitor, by the invariant that the visitor tries to break."""
ANY_GOAL = gettext_noop(
    "Break it in any way: two clients in the critical section, figures that disagree, or a client that cannot enter."
)
"""The goal that is shown on a sound rung."""
ARTICLES = {
    "000": gettext_noop("“From thread locks to Redis locks”"),
    "001": gettext_noop("“Distributed locks with Redis”"),
    "002": gettext_noop("“Overselling, reproduced”"),
    "003": gettext_noop("“How to implement a Redis lock correctly”"),
    "004": gettext_noop("“A simple Redis lock”"),
}
"""Titles of the Chinese articles in which the flawed code was found, by number. Docstrings name these numbers."""
