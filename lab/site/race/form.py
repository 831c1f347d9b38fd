"""The form that starts a race. It asks for the racers and for the size of the race."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from inventory.strategies import registry
from lab.ladder.stock import RUNGS

NEEDS_OTHER_SERVERS = frozenset({"etcd-lock", "redlock", "zookeeper-lock"})
"""Strategies that need servers which a race does not start."""
STRATEGIES = tuple(name for name in registry.NAMES if name not in NEEDS_OTHER_SERVERS)
RACERS = (*RUNGS, *STRATEGIES)
"""All flawed ways of selling (rungs) and strategies that may race, in the order of the page."""
PRESELECTED = ("compute-and-overwrite", "subtract-in-sql", "redis-lock", "guarded-update")
MOST_RACERS = 6


class RaceForm(forms.Form):
    """The racers, the number of units, and the number of customers at the same time."""

    racers = forms.MultipleChoiceField(
        choices=[(name, name) for name in RACERS],
        error_messages={"required": gettext_lazy("Choose at least one.")},
    )
    clients = forms.IntegerField(min_value=10, max_value=200, initial=50)
    stock = forms.IntegerField(min_value=1, max_value=500, initial=100)

    def clean_racers(self) -> list[str]:
        chosen: list[str] = self.cleaned_data["racers"]
        if len(chosen) > MOST_RACERS:
            raise forms.ValidationError(_("Choose at most %(most)d.") % {"most": MOST_RACERS})
        # Sort the racers as on the page, because the browser may send them in any order.
        return [name for name in RACERS if name in chosen]
