"""The view that the overview polls for new figures while it is open."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from shop.overview import document


@require_safe
def live(request: HttpRequest) -> HttpResponse:
    """Return the parts of the overview that this user may see.

    Most figures are up to 1 s old, those of the cards up to 10 s. Figures that take long to read are older.
    """
    shown = document.parts(request, document.shared())
    if not shown:
        raise PermissionDenied("You may see nothing of the overview. Ask an administrator to add you to a group.")
    return JsonResponse({"parts": shown})
