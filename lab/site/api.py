"""The lab's API: place orders through a flawed way of selling (a rung), and set up the lab's own stock."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from redis import RedisError
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAdminUser, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from inventory.errors import StockUnavailable
from lab.checkers import ledger
from lab.ladder.stock import RUNGS
from lab.models import LONGEST_SKU, RungStock
from shop.api.orders import new_order
from shop.api.requests import customer_of, idempotency_key
from shop.api.serializers import StrictInteger
from shop.api.throttles import OrderRate
from shop.orders.errors import UnknownSale
from shop.orders.place import make_request
from shop.sales import offers


class RungOrders(APIView):
    """Place orders through a rung, which is a flawed way of selling. The orders go into the lab's own tables."""

    throttle_classes = (OrderRate,)

    @extend_schema(exclude=True)
    def post(self, request: Request, rung: str) -> Response:
        if rung not in RUNGS:
            raise NotFound(f"There is no rung {rung}. The rungs are: {', '.join(RUNGS)}.")
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
        for item in order_request.items:
            if not RungStock.objects.filter(sku=item.sku).exists():
                raise _no_stock(item.sku)
        RUNGS[rung].place(order_request, ledger.save)
        return Response({"id": str(order_request.id), "rung": rung}, status=201)


class StockSerializer(serializers.Serializer[Any]):
    received = StrictInteger(min_value=0, max_value=1_000_000)


class Stock(APIView):
    """The lab's stock of a sku. Staff may set it, and any user may read its figures."""

    def get_permissions(self) -> list[Any]:
        return [IsAdminUser() if self.request.method == "PUT" else IsAuthenticated()]

    @extend_schema(exclude=True)
    def put(self, request: Request, sku: str) -> Response:
        if len(sku) > LONGEST_SKU:
            raise NotFound(f"A sku has at most {LONGEST_SKU} characters.")
        body = StockSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        try:
            ledger.stock_up(sku, body.validated_data["received"])
        except RedisError as error:
            raise StockUnavailable(str(error)) from error
        return self.get(request, sku)

    @extend_schema(exclude=True)
    def get(self, request: Request, sku: str) -> Response:
        try:
            figures, unowned, repeated = ledger.figures(sku), ledger.unowned(sku), ledger.repeated(sku)
        except RungStock.DoesNotExist as error:
            raise _no_stock(sku) from error
        except RedisError as error:
            raise StockUnavailable(str(error)) from error
        names = ("sku", "received", "on_hand", "sold", "oversold", "conserved")
        counted = {name: getattr(figures, name) for name in names}
        return Response({**counted, "unowned": unowned, "repeated": repeated})


class Rungs(APIView):
    """List the flawed ways of selling through which orders can be placed."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        return Response({"rungs": list(RUNGS)})


def _no_stock(sku: str) -> NotFound:
    return NotFound(f"The lab has no stock of {sku}.")
