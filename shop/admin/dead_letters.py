"""The admin page on which an operator reads and deletes dead letters. Deleted letters leave the overview, too."""

from __future__ import annotations

import logging

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_http_methods
from redis import RedisError

from inventory.strategies import registry
from shop.admin.recording import RecordingAdmin

logger = logging.getLogger(__name__)


class SettledForm(forms.Form):
    """The form with the entry id of the newest dead letter that the operator has seen."""

    until = forms.RegexField(r"^\d{1,15}-\d{1,15}\Z", widget=forms.HiddenInput)


class DeadLettersAdmin(RecordingAdmin):
    """The page of dead letters. Only users with the permission “Can change order” may open it."""

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(self.dead_letters)
        return [path("dead-letters/", page, name="shop_dead_letters"), *super().get_urls()]

    @method_decorator(require_http_methods(["GET", "POST"]))
    def dead_letters(self, request: HttpRequest) -> HttpResponse:
        """Show the dead letters. If the form was sent, delete those that the page had shown."""
        if not request.user.has_perm("shop.change_order"):
            raise PermissionDenied
        unsettled = registry.queue().dead_letters
        form = SettledForm(request.POST or None)
        try:
            if form.is_valid():
                gone = unsettled.delete_until(form.cleaned_data["until"])
                logger.warning("%s has settled %d dead letters", request.user.get_username(), gone)
                self.message_user(request, f"{gone} dead letters are settled.", messages.SUCCESS)
                return redirect("admin:index")
            # Read the newest id before the list: a dead letter that arrives in between is shown, but the form does not
            # delete it.
            until = unsettled.last_id()
            letters = unsettled.newest() if until else []
        except RedisError as error:
            self.message_user(request, f"Nothing was changed. Redis reports: {error}", messages.ERROR)
            return redirect("admin:index")
        context = {
            **self.admin_site.each_context(request),
            "title": "Dead letters",
            "letters": letters,
            "until": until,
        }
        return render(request, "shop/dead_letters.html", context)
