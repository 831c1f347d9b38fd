"""The view that explains a problem type. Its URL is the `type` of the problem document."""

from __future__ import annotations

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from shop.api.problems import PROBLEMS


class Problems(APIView):
    """Explanation of a problem type."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(exclude=True)
    def get(self, request: Request, slug: str) -> Response:
        if slug not in PROBLEMS:
            raise Http404(f"There is no problem {slug}.")
        problem = PROBLEMS[slug]
        return Response(
            {"type": problem.type, "title": problem.title, "status": problem.status, "advice": problem.advice}
        )
