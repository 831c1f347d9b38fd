"""Check the input of admin requests before it reaches Postgres, so that wrong input gets status 400 and never 500."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.autocomplete import AutocompleteJsonView
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.admin import ModelAdmin

SHOWN = 40
"""Maximum number of characters of a wrong value in an error message."""

LOOKUPS = {"", "id", "exact", "isnull", "gte", "lt"}
"""Lookups that may follow a field name in the query string of a list, such as `__gte`."""


class NoNulMiddleware:
    """Middleware that refuses NUL characters, because Postgres cannot store them in a text.

    It checks the cookies of every request, and for the admin also the path, the query and the form.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *view: Any) -> None:
        for place, text in _texts(request) if request.path_info.startswith("/admin/") else _cookies(request):
            if "\0" in text:
                raise BadRequest(f"There is a NUL character in the {place}. Remove it.")


def _texts(request: HttpRequest) -> Iterator[tuple[str, str]]:
    """Yield each text in the request that the admin may read, in a pair: where it is, such as "query", and the text."""
    yield "address", request.path_info
    yield from _cookies(request)
    for place, fields in (("query", request.GET), ("form", request.POST)):
        for name, values in fields.lists():
            yield place, name
            for value in values:
                yield f"{place}, in {name[:SHOWN]}", value


def _cookies(request: HttpRequest) -> Iterator[tuple[str, str]]:
    """Yield each cookie. A quoted cookie can contain a NUL, which Django would send to Postgres in a session key."""
    for name, value in request.COOKIES.items():
        yield "cookies", name + value


class Autocomplete(AutocompleteJsonView):
    """The autocomplete view. It refuses reverse relations, because Django fails on them."""

    def process_request(self, request: HttpRequest) -> Any:
        found = super().process_request(request)
        if not found[2].concrete:
            raise PermissionDenied
        return found


class CheckedAdmin(ModelAdmin):
    """The base class of every model admin of the shop."""

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only the lookups that filters and links use. Django checks the values of other lookups too late."""
        kind = lookup.partition("__")[2].removeprefix("id__")
        return kind in LOOKUPS and super().lookup_allowed(lookup, value, request)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the object. Treat an empty `_to_field` as the id, because Django would look for a field named ""."""
        return super().get_object(request, object_id, from_field or None)

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Run an action, after checking that each selected id has the type of this model's ids."""
        for selected in request.POST.getlist(ACTION_CHECKBOX_NAME):
            try:
                self.opts.pk.to_python(selected)
            except ValidationError as error:
                names = self.opts.verbose_name_plural
                raise BadRequest(f"“{selected[:SHOWN]}” is not an id of {names}. Nothing was changed.") from error
        return super().response_action(request, queryset)
