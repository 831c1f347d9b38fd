"""API views of the caller's orders: place, list, look up, pay and cancel. `shop.orders` has the rules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from shop.api.requests import KEY, account_of, customer_of, idempotency_key, is_guest, remembered, replay_header
from shop.api.serializers import NEW_ORDER, NewOrderSerializer, OrderSerializer, order_json
from shop.api.throttles import OrderRate
from shop.models import Order
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.lookup import find_order
from shop.orders.place import place_order

KEY_PARAMETER = OpenApiParameter(
    "Idempotency-Key",
    location=OpenApiParameter.HEADER,
    required=True,
    type={"type": "string", "pattern": f"^{KEY.pattern}$"},
    description="A new random key for each new order. Repeating the same key and body returns the same order.",
    examples=[OpenApiExample("A UUID", value="0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e")],
)
TICKET_PARAMETER = OpenApiParameter(
    "Waiting-Ticket",
    location=OpenApiParameter.HEADER,
    description="The ticket of the sale's waiting room, if it has one.",
)
EXAMPLE_ORDER = OpenApiExample(
    "One unit", value={"sale": 1, "items": [{"product": 1, "quantity": 1, "price": "79.00"}]}, request_only=True
)


@remembered
def new_order(body: dict[str, Any]) -> Mapping[str, Any]:
    """Return the validated body: `sale`, and `quantities` and `expected_prices` by product id.

    Raises:
        ValidationError: the body is not valid.
    """
    content: dict[str, Any] = NEW_ORDER.run_validation(body)
    return MappingProxyType(content)


class Orders(ListAPIView[Order]):
    """The caller's orders."""

    serializer_class = OrderSerializer

    def get_queryset(self) -> QuerySet[Order]:
        return Order.objects.filter(customer=account_of(self.request)).prefetch_related("items__product")

    def get_throttles(self) -> list[Any]:
        return [OrderRate()] if self.request.method == "POST" else []

    @extend_schema(
        request=NewOrderSerializer,
        parameters=[KEY_PARAMETER, TICKET_PARAMETER],
        examples=[EXAMPLE_ORDER],
        responses={
            201: OpenApiResponse(OrderSerializer, description="The order is saved."),
            202: OpenApiResponse(OrderSerializer, description="The order is queued. Location is its URL."),
        },
    )
    def post(self, request: Request) -> Response:
        """Place an order."""
        key = idempotency_key(request)
        ticket = request.headers.get("Waiting-Ticket", "")
        placed = place_order(
            customer=customer_of(request), guest=is_guest(request), key=key, ticket=ticket, **new_order(request)
        )
        # The first response for a rejected order had status 202, because the order was queued. A retry gets
        # the same status.
        accepted = placed.queued or placed.order.state == Order.State.REJECTED
        return Response(
            order_json(placed.order, queued=placed.queued, place=placed.place),
            status=202 if accepted else 201,
            headers={"Location": f"{request.path}{placed.order.pk}/", **replay_header(replayed=placed.replayed)},
        )


class OneOrder(APIView):
    """One order of the caller."""

    @extend_schema(responses=OrderSerializer)
    def get(self, request: Request, order: UUID) -> Response:
        """Get an order."""
        found = find_order(order, customer=account_of(request))
        return Response(order_json(found.order, queued=found.queued, place=found.place))


class PayOrder(APIView):
    """Payment of an order in a shop without a payment provider."""

    @extend_schema(request=None, responses=OrderSerializer)
    def post(self, request: Request, order: UUID) -> Response:
        """Mark an order as paid. Only in a shop without a payment provider. Repeating this changes nothing."""
        paid = pay_order(order, customer=account_of(request))
        return Response(OrderSerializer(paid.order).data, headers=replay_header(replayed=paid.replayed))


class CancelOrder(APIView):
    """Cancellation of an order."""

    @extend_schema(request=None, responses=OrderSerializer)
    def post(self, request: Request, order: UUID) -> Response:
        """Cancel a pending order. Repeating this changes nothing."""
        cancelled = cancel_order(order, customer=account_of(request))
        return Response(OrderSerializer(cancelled.order).data, headers=replay_header(replayed=cancelled.replayed))
