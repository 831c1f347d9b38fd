"""The admin page on which an operator reads the dead letters, and takes them off the overview when that is done."""

from __future__ import annotations

import logging
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_http_methods
from django_redis import get_redis_connection
from redis import RedisError

from inventory.queue.dead_letters import DEAD_LETTERS, DeadLetters
from shop.admin.recording import RecordingAdmin

logger = logging.getLogger(__name__)

SHOWN = 100
"""Maximum number of dead letters on the page. The newest are shown."""


class SettledForm(forms.Form):
    """The form with the time of the newest dead letter that the operator has seen."""

    until = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    """Milliseconds since 1970, as in the ids of the entries."""


class DeadLettersAdmin(RecordingAdmin):
    """The page of dead letters. To settle them needs the permission “Can change order”."""

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(self.dead_letters)
        return [path("dead-letters/", page, name="shop_dead_letters"), *super().get_urls()]

    @method_decorator(require_http_methods(["GET", "POST"]))
    def dead_letters(self, request: HttpRequest) -> HttpResponse:
        """Show the dead letters. If the form was sent, delete those that the page had shown, and any older ones."""
        if not request.user.has_perm("shop.change_order"):
            raise PermissionDenied
        redis: Any = get_redis_connection("default")
        form = SettledForm(request.POST or None)
        letters = []
        try:
            if form.is_valid():
                self._settle(request, redis, form.cleaned_data["until"])
                return redirect("admin:index")
            letters = DeadLetters(redis).newest(SHOWN)
        except RedisError as error:
            self.message_user(request, f"Nothing was changed. Redis reports: {error}", messages.ERROR)
        context = {
            **self.admin_site.each_context(request),
            "title": "Dead letters",
            "letters": letters,
            "until": round(letters[0][0].timestamp() * 1000) if letters else None,
        }
        return render(request, "shop/dead_letters.html", context)

    def _settle(self, request: HttpRequest, redis: Any, until: int) -> None:
        gone = redis.xtrim(DEAD_LETTERS, minid=until + 1, approximate=False)
        logger.warning("%s has settled %d dead letters", request.user.get_username(), gone)
        self.message_user(request, f"{gone} dead letters are settled.", messages.SUCCESS)
