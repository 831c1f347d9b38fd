"""Endpoints to compare the shop with: one that does nothing, and one that uses redis-py's lock."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from loadtest.bench.peer_strategy import RedisPyLock
from shop.api.orders import Orders, new_order
from shop.api.requests import customer_of, idempotency_key
from shop.api.serializers import order_json
from shop.orders.errors import UnknownSale
from shop.orders.place import make_request, place_request
from shop.sales import offers

PEER = RedisPyLock()


class Empty(Orders):
    """The order endpoint without an order: the same authentication, throttling, parsing and validation."""

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
        order_request = make_request(offer, customer=customer_of(request), quantities=body["quantities"], key=key)
        placed = place_request(order_request, offer, PEER)
        return Response(order_json(placed.order), status=201)
