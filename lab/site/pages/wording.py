"""What the code says in English of rungs and of runs, in the reader's language."""

from __future__ import annotations

import re
from functools import cache

from django.utils.translation import gettext, gettext_noop

SENTENCES = (
    gettext_noop("%(who)s are inside at the same time."),
    gettext_noop("%(yes)s were told that they have bought, and %(gone)s of %(all)s units are gone."),
    gettext_noop("%(received)s were received; %(left)s are on hand and %(sold)s are sold."),
    gettext_noop("%(left)s are on hand, and %(unowned)s of them nobody can buy."),
    gettext_noop("One customer clicked twice and has %(orders)s orders."),
    gettext_noop("%(who)s wanted %(wanted)s, was told sold out, and %(left)s are left."),
    gettext_noop("%(who)s was told %(answer)s, and has no order."),
    gettext_noop("%(who)s is refused (%(error)s), also when nobody is in the way."),
    gettext_noop("%(who)s could have bought, and got nothing."),
    gettext_noop("The part of %(who)s is not in the record."),
    gettext_noop("After %(steps)s steps nobody has come to an end."),
    gettext_noop("Nobody is inside, and still %(who)s cannot enter: not before the TTL is over."),
    gettext_noop("Nobody is inside, and still %(who)s cannot enter: not even time has helped."),
    gettext_noop("Nobody is inside, and still %(who)s cannot enter: nothing that they wait for will ever come."),
    gettext_noop("%(seconds)s s pass: nobody can go on"),
    gettext_noop("sleeps %(seconds)s s"),
    gettext_noop("tick %(who)s"),
    gettext_noop("pause %(who)s"),
    gettext_noop("crash %(who)s"),
    gettext_noop("%(who)s's watchdog"),
    gettext_noop("refused: %(error)s"),
    gettext_noop("%(units)s on hand"),
    gettext_noop("%(units)s on hand, fence %(fence)s"),
)
"""Sentences with something in them that differs from run to run."""
WORDS = (
    gettext_noop("asks for the lock in his memory"),
    gettext_noop("frees the lock in his memory"),
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
    gettext_noop("told yes"),
    gettext_noop("in the record"),
    gettext_noop("time"),
    gettext_noop("common practice"),
)
"""What actors are told, what ledgers count, and other words of a run."""


def said(text: str) -> str:
    """A text of the code in the reader's language; as it is when it has no translation, as commands have none."""
    if not text:
        return ""
    translated = gettext(text)
    if translated != text:
        return translated
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
