"""English texts about schedules and their outcome that the code writes, and their translation for the reader."""

from __future__ import annotations

import re
from functools import cache

from django.utils.translation import gettext, gettext_noop

SENTENCES = (
    gettext_noop("%(who)s are inside at the same time."),
    gettext_noop("%(sales)s sales were confirmed, but the stock fell from %(before)s to %(after)s."),
    gettext_noop("%(received)s units were received, but %(left)s are on hand and %(sold)s are sold."),
    gettext_noop("%(left)s units are on hand, but %(unowned)s of them cannot be bought."),
    gettext_noop("One customer sent the same request again and has %(orders)s orders."),
    gettext_noop("%(who)s wanted %(wanted)s and was refused as sold out. Units left: %(left)s."),
    gettext_noop('%(who)s got the answer "%(answer)s", but has no order.'),
    gettext_noop("%(who)s met an error that no client should see: %(error)s"),
    gettext_noop("%(who)s is refused (%(error)s) even when no other client is active."),
    gettext_noop("%(who)s could have bought a unit but got none."),
    gettext_noop("The part of %(who)s is not in the record."),
    gettext_noop("The clients have not finished after %(steps)s steps."),
    gettext_noop("No client is inside, but %(who)s cannot enter before the TTL has passed."),
    gettext_noop("No client is inside, but %(who)s cannot enter even after the TTL has passed."),
    gettext_noop("No client is inside, but %(who)s can never enter."),
    gettext_noop("%(seconds)s s pass: no client can go on"),
    gettext_noop("sleeps %(seconds)s s"),
    gettext_noop("tick %(who)s"),
    gettext_noop("pause %(who)s"),
    gettext_noop("crash %(who)s"),
    gettext_noop("%(who)s's watchdog"),
    gettext_noop("refused: %(error)s"),
    gettext_noop("%(units)s on hand"),
    gettext_noop("%(units)s on hand, fence %(fence)s"),
)
"""Sentences with values that differ from run to run."""
WORDS = (
    gettext_noop("asks for the lock in its memory"),
    gettext_noop("frees the lock in its memory"),
    gettext_noop("asks for the lock on its file"),
    gettext_noop("frees the lock on its file"),
    gettext_noop("the standby receives what the primary has written"),
    gettext_noop("up to date"),
    gettext_noop("crashes"),
    gettext_noop("crashed"),
    gettext_noop("held"),
    gettext_noop("broken"),
    gettext_noop("sold"),
    gettext_noop("sold out"),
    gettext_noop("queued"),
    gettext_noop("overtaken"),
    gettext_noop("merged"),
    gettext_noop("received"),
    gettext_noop("left"),
    gettext_noop("on hand"),
    gettext_noop("stock"),
    gettext_noop("orders"),
    gettext_noop("confirmed"),
    gettext_noop("in the record"),
    gettext_noop("time"),
    gettext_noop("common practice"),
)
"""Answers of clients, names of ledger figures, and other fixed words of a run."""


def translated(text: str) -> str:
    """Return a text in the reader's language. Texts without a translation, such as commands, stay as they are."""
    if not text:
        return ""
    whole = gettext(text)
    if whole != text:
        return whole
    for sentence, pattern in _patterns().items():
        if found := pattern.fullmatch(text):
            values = {name: value.replace(" and ", gettext(" and ")) for name, value in found.groupdict().items()}
            return gettext(sentence) % values
    return text


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {
        sentence: re.compile(re.sub(r"%\\?\((\w+)\\?\)s", r"(?P<\1>.+)", re.escape(sentence))) for sentence in SENTENCES
    }
