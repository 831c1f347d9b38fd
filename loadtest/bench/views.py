"""Endpoints for comparison with the shop's order endpoint.

The plain endpoint and the empty endpoint place no order. The third endpoint orders with redis-py's lock.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework_simplejwt.authentication import JWTStatelessUserAuthentication

from loadtest.bench.peer_strategy import RedisPyLock
from shop.api.orders import Orders, new_order
from shop.api.requests import customer_of, idempotency_key
from shop.api.serializers import order_json
from shop.orders.errors import UnknownSale
from shop.orders.place import make_request, place_request
from shop.sales import offers

PEER = RedisPyLock()


class PlainItemSerializer(serializers.Serializer[Any]):
    product = serializers.IntegerField(min_value=1)
    quantity = serializers.IntegerField(min_value=1)


class PlainSerializer(serializers.Serializer[Any]):
    sale = serializers.IntegerField(min_value=1)
    items = PlainItemSerializer(many=True)


class Plain(APIView):
    """An endpoint as the manuals of Django, REST framework and simplejwt suggest: no throttle, database or order."""

    authentication_classes = (JWTStatelessUserAuthentication,)
    permission_classes = (IsAuthenticated,)
    parser_classes = (JSONParser,)
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = DefaultContentNegotiation

    def post(self, request: Request) -> Response:
        serializer = PlainSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        return Response(serializer.validated_data, status=201)


class Empty(Orders):
    """The order endpoint, but it places no order: the same authentication, throttling, parsing and validation."""

    def post(self, request: Request) -> Response:
        idempotency_key(request)
        new_order(request)
        return Response({"id": None}, status=201)


class RedisPyLockOrders(Orders):
    """The order endpoint with redis-py's lock."""

    def post(self, request: Request) -> Response:
        key, body = idempotency_key(request), new_order(request)
        offer = offers.get(body["sale"])
        if offer is None:
            raise UnknownSale(f"There is no sale {body['sale']}.")
        order_request = make_request(
            offer,
            customer=customer_of(request),
            quantities=body["quantities"],
            key=key,
            expected_prices=body["expected_prices"],
        )
        placed = place_request(order_request, offer, PEER)
        return Response(order_json(placed.order), status=201)
