"""Translate the reasons of rejections and the notes of payments, which `shop.orders` stores in English."""

from __future__ import annotations

import re
from collections.abc import Mapping

from django.utils.translation import gettext, gettext_noop

from shop.orders.lookup import LOST

PATTERNS = (
    (
        re.compile(r"Sale \d+ does not take orders now\."),
        gettext_noop("The sale was closed or postponed before the order was saved."),
    ),
    (
        re.compile(r"The order was (?:cancelled|expired)\. Its units were taken again\."),
        gettext_noop("The order had ended before the payment arrived. Its units were taken again for you."),
    ),
    (
        re.compile(r"The order is (?:cancelled|expired)\. (?P<why>.+)"),
        gettext_noop("The order had ended before the payment arrived, and its units cannot be taken again. %(why)s"),
    ),
    (re.compile(r"The order is already paid\."), gettext_noop("The order was paid already.")),
    (
        re.compile(r"An operator settled the report before it could be booked\."),
        gettext_noop("The shop had settled this payment before it could be booked."),
    ),
    (re.compile(r"The order is (?:rejected|refunded)\."), gettext_noop("The order takes no payment any more.")),
    (
        re.compile(r"The queue has lost this order before it was saved\."),
        gettext_noop("The shop has lost this order before it was saved. Nothing was sold, and nothing is to be paid."),
    ),
    (
        re.compile(re.escape(LOST)),
        gettext_noop("The shop has lost this order. Nothing was sold, and nothing is to be paid."),
    ),
    (
        re.compile(r"(?P<product>.+): (?P<wanted>\d+) wanted, (?P<left>\d+) left"),
        gettext_noop("Sold out: of “%(product)s”, %(wanted)s were wanted and %(left)s were left."),
    ),
    (
        re.compile(r"(?P<product>.+): fewer than (?P<wanted>\d+) are left"),
        gettext_noop("Sold out: of “%(product)s”, %(wanted)s were wanted and fewer were left."),
    ),
    (
        re.compile(r"(?P<product>.+): at most (?P<limit>\d+) per customer, (?P<taken>\d+) taken already"),
        gettext_noop("The limit of “%(product)s” is %(limit)s per customer, and you have %(taken)s already."),
    ),
)
"""Pairs of a pattern for a stored text, and the text for the buyer. The first matching pattern is used."""


def in_words(reason: str, names: Mapping[str, str]) -> str:
    """Return a stored reason or note in the buyer's language. If no pattern matches, return it unchanged.

    Args:
        names: names of the products, by sku.
    """
    for pattern, text in PATTERNS:
        if (found := pattern.fullmatch(reason)) is not None:
            values = found.groupdict()
            if "product" in values:
                values["product"] = names.get(values["product"], values["product"])
            if "why" in values:
                values["why"] = in_words(values["why"], names)
            return gettext(text) % values
    return reason
