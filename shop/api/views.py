"""The REST API. A view parses and answers; `checkout` decides."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import psycopg
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone
from django_redis import get_redis_connection
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from redis import RedisError
from rest_framework.exceptions import AuthenticationFailed, ValidationError
from rest_framework.generics import ListAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from shop.api import signatures
from shop.api.parsers import MAX_BODY
from shop.api.problems import PROBLEMS, BadKey, BodyTooLarge, LengthRequired
from shop.api.serializers import (
    NEW_ORDER,
    NewOrderSerializer,
    NewPaymentSerializer,
    OfferSerializer,
    OrderSerializer,
    PaymentSerializer,
    shown,
)
from shop.api.throttles import OrderRate
from shop.models import Order, Sale
from shop.orders import payments
from shop.orders.customer_changes import cancel_order, pay_order
from shop.orders.lookup import find_order
from shop.orders.place import place_order
from shop.sales import offers

KEY = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
KEY_PARAMETER = OpenApiParameter(
    "Idempotency-Key",
    location=OpenApiParameter.HEADER,
    required=True,
    type={"type": "string", "pattern": f"^{KEY.pattern}$"},
    description="A new random key for a new order; the same key and body again is the same order.",
    examples=[OpenApiExample("A UUID", value="0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e")],
)
EXAMPLE_ORDER = OpenApiExample(
    "One unit", value={"sale": 1, "items": [{"product": 1, "quantity": 1}]}, request_only=True
)
SIGNATURE_PARAMETER = OpenApiParameter(
    signatures.HEADER,
    location=OpenApiParameter.HEADER,
    required=True,
    type={"type": "string", "pattern": f"^{signatures.FORM.pattern}$"},
    description=(
        "`t` is the moment of sending, in seconds since 1970; `v1` the HMAC-SHA256, in hex, of `t`, a full stop and "
        f"the body, with the secret that provider and shop share. It is good for {signatures.TOLERANCE} seconds."
    ),
)
EXAMPLE_PAYMENT = OpenApiExample(
    "A payment",
    value={"reference": "pay_4711", "order": "0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e", "amount": "19.80"},
    request_only=True,
)


def customer_of(request: Request) -> int:
    """The id of the user whose token came with the request."""
    try:
        return int(str(request.user.pk))
    except ValueError as error:
        raise AuthenticationFailed("The token names no user.") from error


def account_of(request: Request) -> int:
    """The id of the caller, whose account is still open. Where an order is placed, saving it asks that.

    Raises:
        AuthenticationFailed: the token is good, and the account is closed or deleted since it was made.
    """
    customer = customer_of(request)
    if not get_user_model().objects.filter(pk=customer, is_active=True).exists():
        raise AuthenticationFailed("The account is closed.")
    return customer


def idempotency_key(request: Request) -> str:
    """The key of a request, with or without the quotes that the IETF draft puts around it.

    Raises:
        BadKey: it is missing or malformed.
    """
    key = request.headers.get("Idempotency-Key", "").strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not KEY.fullmatch(key):
        raise BadKey(
            f"Send an Idempotency-Key header that matches {KEY.pattern}, such as a UUID: a new one with each new order."
        )
    return key


def require_length(request: Request) -> None:
    """Refuse a body that comes in chunks: it would look like none."""
    if "Content-Length" not in request.headers and "Transfer-Encoding" in request.headers:
        raise LengthRequired


def json_object(request: Request) -> dict[str, Any]:
    """The body of a request.

    Raises:
        LengthRequired, ValidationError: it cannot be read, or is something else.
    """
    require_length(request)
    if not isinstance(request.data, dict):
        raise ValidationError(["The body must be a JSON object."])
    return request.data


def raw_body(request: Request) -> bytes:
    """The bytes of the body as they were sent; `request.data` can still be read.

    Raises:
        LengthRequired, BodyTooLarge: they cannot be read, or are more than a body has.
    """
    require_length(request)
    if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BODY:
        raise BodyTooLarge(f"A body has at most {MAX_BODY} bytes.")
    return bytes(request._request.body)


def new_order(request: Request) -> dict[str, Any]:
    """What an order's body says: `sale`, and `quantities` by product.

    Raises:
        ValidationError: the body is not an order.
    """
    return dict(NEW_ORDER.run_validation(json_object(request)))


def replay_header(*, replayed: bool) -> dict[str, str]:
    """Return the header that marks an answer to an earlier request, which this request did not repeat."""
    return {"Idempotent-Replayed": "true"} if replayed else {}


class Orders(ListAPIView[Order]):
    """The caller's orders."""

    serializer_class = OrderSerializer

    def get_queryset(self) -> QuerySet[Order]:
        return Order.objects.filter(customer=account_of(self.request)).prefetch_related("items__product")

    def get_throttles(self) -> list[Any]:
        return [OrderRate()] if self.request.method == "POST" else []

    @extend_schema(
        request=NewOrderSerializer,
        parameters=[KEY_PARAMETER],
        examples=[EXAMPLE_ORDER],
        responses={
            201: OpenApiResponse(OrderSerializer, description="The order, committed."),
            202: OpenApiResponse(OrderSerializer, description="The order is queued; see Location."),
        },
    )
    def post(self, request: Request) -> Response:
        """Place an order."""
        key = idempotency_key(request)
        placed = place_order(customer=customer_of(request), key=key, **new_order(request))
        # One that is rejected was queued first: its key has the same answer as before, and that is not "created".
        accepted = placed.queued or placed.order.state == Order.State.REJECTED
        return Response(
            shown(placed.order, queued=placed.queued, place=placed.place),
            status=202 if accepted else 201,
            headers={"Location": f"{request.path}{placed.order.pk}/", **replay_header(replayed=placed.replayed)},
        )


class OneOrder(APIView):
    """An order of the caller."""

    @extend_schema(responses=OrderSerializer)
    def get(self, request: Request, order: UUID) -> Response:
        """Look at an order."""
        found = find_order(order, customer=account_of(request))
        return Response(shown(found.order, queued=found.queued, place=found.place))


class PayOrder(APIView):
    """The payment of an order at its customer's word, in a shop without a payment provider."""

    @extend_schema(request=None, responses=OrderSerializer)
    def post(self, request: Request, order: UUID) -> Response:
        """Say that an order is paid, where no payment provider does. Paying twice is paying once."""
        paid = pay_order(order, customer=account_of(request))
        return Response(OrderSerializer(paid.order).data, headers=replay_header(replayed=paid.replayed))


class CancelOrder(APIView):
    """The end of an order that is not paid."""

    @extend_schema(request=None, responses=OrderSerializer)
    def post(self, request: Request, order: UUID) -> Response:
        """Cancel a pending order. Cancelling twice is cancelling once."""
        cancelled = cancel_order(order, customer=account_of(request))
        return Response(OrderSerializer(cancelled.order).data, headers=replay_header(replayed=cancelled.replayed))


class Payments(APIView):
    """What the payment provider says."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(
        request=NewPaymentSerializer,
        parameters=[SIGNATURE_PARAMETER],
        examples=[EXAMPLE_PAYMENT],
        responses={
            200: OpenApiResponse(
                PaymentSerializer, description="The payment, as it was first received, and what became of it."
            )
        },
    )
    def post(self, request: Request) -> Response:
        """Say that an order was paid for. Of each reference the first message counts, and all have its answer."""
        signatures.verify(request.headers.get(signatures.HEADER, ""), raw_body(request))
        body = NewPaymentSerializer(data=json_object(request))
        body.is_valid(raise_exception=True)
        received = payments.receive(**body.validated_data)
        return Response(
            PaymentSerializer(received.payment).data,
            headers=replay_header(replayed=received.replayed),
        )


class Sales(APIView):
    """The sales that are open or will be."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(responses=OfferSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the sales that are open or will be, the next to open first."""
        sales = Sale.objects.filter(closes_at__gt=timezone.now()).prefetch_related("items__product")
        sales = sales.order_by("opens_at", "pk")[:100]
        return Response(OfferSerializer([offers.offer_of(sale) for sale in sales], many=True).data)


class OneSale(APIView):
    """A sale."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(responses=OfferSerializer)
    def get(self, request: Request, sale: int) -> Response:
        """Look at a sale: its window, products, prices and limits."""
        offer = offers.get(sale)
        if offer is None:
            raise Http404(f"There is no sale {sale}.")
        return Response(OfferSerializer(offer).data)


class Problems(APIView):
    """What a problem type means."""

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


class Health(APIView):
    """Whether the shop can sell: Postgres lets it in to write and Redis answers, each within `PATIENCE`.

    Postgres is asked on a connection of its own. A request may wait longer for one of the pool, which says less: all
    may be at work, or still be connected to a server that does not answer any more.
    """

    PATIENCE = 2
    """Seconds: no less can be asked of a client of Postgres, and Redis has as many (see CACHES)."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        health = {"postgres": True, "redis": True}
        try:
            writing = {"connect_timeout": self.PATIENCE, "target_session_attrs": "read-write"}
            psycopg.connect(**{**connection.get_connection_params(), **writing}).close()
        except psycopg.Error:
            health["postgres"] = False
        try:
            get_redis_connection("default").ping()
        except RedisError:
            health["redis"] = False
        return Response(health, status=200 if all(health.values()) else 503)
