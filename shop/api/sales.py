"""API views of open and coming sales. They need no token."""

from __future__ import annotations

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from shop.api.serializers import OfferSerializer
from shop.sales import offers


class Sales(APIView):
    """Open and coming sales."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(responses=OfferSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List open and coming sales, sorted by opening time."""
        return Response(OfferSerializer(offers.open_or_coming(), many=True).data)


class OneSale(APIView):
    """One sale."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(responses=OfferSerializer)
    def get(self, request: Request, sale: int) -> Response:
        """Get a sale with its times, products, prices and limits."""
        offer = offers.get(sale)
        if offer is None:
            raise Http404(f"There is no sale {sale}.")
        return Response(OfferSerializer(offer).data)
