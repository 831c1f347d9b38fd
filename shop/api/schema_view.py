"""The view of the OpenAPI schema."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request


@cache
def rendered(renderer: Any) -> bytes:
    """Return the schema in the format of a renderer class. A process makes it only once, because it takes long."""
    text: bytes = renderer().render(SchemaGenerator().get_schema(public=True))
    return text


class Schema(SpectacularAPIView):
    """The OpenAPI schema, as YAML or JSON. It is the same for every request.

    The base class would make the schema for each request, so a single client could keep all threads of the shop busy.
    For each `lang` in a query, it would also load translations that are never freed. It would send the `version` of the
    query back in a header.
    """

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **values: Any) -> HttpResponse:
        renderer: Any = request.accepted_renderer
        name = f"{settings.SPECTACULAR_SETTINGS['TITLE']}.{renderer.format}"
        kind = renderer.media_type if renderer.charset is None else f"{renderer.media_type}; charset={renderer.charset}"
        return HttpResponse(
            rendered(renderer.__class__),
            content_type=kind,
            headers={"Content-Disposition": f'inline; filename="{name}"'},
        )
