"""Views of the REST API. They parse requests and format answers; `shop.orders` decides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.generics import ListAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from shop.accounts.tokens import SESSION, require_session
from shop.api import signatures
from shop.api.parsers import MAX_BODY
from shop.api.problems import PROBLEMS, BadKey, BodyTooLarge, LengthRequired, pointers
from shop.api.serializers import (
    NEW_ORDER,
    ChargebackSerializer,
    NewChargebackSerializer,
    NewOrderSerializer,
    NewPaymentSerializer,
    OfferSerializer,
    OrderSerializer,
    PaymentSerializer,
    order_json,
)
from shop.api.throttles import OrderRate
from shop.models import Order
from shop.orders import payments, returns, unmatched
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
    description="A new random key for each new order. Repeating the same key and body returns the same order.",
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
        "`t` is the time of sending in seconds since 1970. `v1` is the HMAC-SHA256, in hexadecimal, of `t`, a full "
        f"stop and the body, with the shared secret. The signature is valid for {signatures.TOLERANCE} seconds."
    ),
)
EXAMPLE_PAYMENT = OpenApiExample(
    "A payment",
    value={
        "reference": "pay_4711",
        "order": "0199c2ba-6f2e-7c3a-a1de-2f9a3c4b5d6e",
        "amount": "19.80",
        "currency": "EUR",
    },
    request_only=True,
)

EXAMPLE_CHARGEBACK = OpenApiExample(
    "A chargeback",
    value={"reference": "cb_1", "payment": "pay_4711", "amount": "19.80", "currency": "EUR"},
    request_only=True,
)


def customer_of(request: Request) -> int:
    """Return the user id in the token of the request, which `shop.accounts.tokens` has checked."""
    return int(str(request.user.pk))


def account_of(request: Request) -> int:
    """Return the user id in the token, after checking that the account is active and its session has not ended.

    Placing an order uses `customer_of` instead: whether the account is active is checked when the order is saved.

    Raises:
        TokenError: the token is valid, but the account was closed, or its session has ended.
    """
    customer = customer_of(request)
    token: Any = request.auth
    require_session(customer, token.get(SESSION))
    return customer


def idempotency_key(request: Request) -> str:
    """Return the idempotency key of a request. The quotes that the IETF draft puts around it are optional.

    Raises:
        BadKey: the key is missing or malformed.
    """
    header = request.headers.get("Idempotency-Key")
    key = (header or "").strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not KEY.fullmatch(key):
        raise BadKey(
            f"The Idempotency-Key is {'missing' if header is None else 'malformed'}. "
            f"Send one that matches {KEY.pattern}, such as a UUID, and a new one for each order."
        )
    return key


def require_length(request: Request) -> None:
    """Refuse a chunked body, which would be read as an empty one."""
    if "Content-Length" not in request.headers and "Transfer-Encoding" in request.headers:
        raise LengthRequired


def json_object(request: Request) -> dict[str, Any]:
    """Return the body of a request.

    Raises:
        LengthRequired: the body is chunked.
        ValidationError: the body is not a JSON object.
    """
    require_length(request)
    if not isinstance(request.data, dict):
        raise ValidationError(["The body must be a JSON object."])
    return request.data


def raw_body(request: Request) -> bytes:
    """Return the body as bytes. `request.data` can still be read afterwards.

    Raises:
        LengthRequired, BodyTooLarge: the body is refused.
    """
    require_length(request)
    if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BODY:
        raise BodyTooLarge(f"The body is longer than {MAX_BODY} bytes.")
    return bytes(request._request.body)


def signed_report(request: Request) -> str:
    """Return the body of a report that the payment provider has signed.

    Raises:
        LengthRequired, BodyTooLarge, BadSignature: the report is refused.
    """
    body = raw_body(request)
    signatures.verify(request.headers.get(signatures.HEADER, ""), body)
    return body.decode(errors="replace")


@contextmanager
def recorded_if_refused(report: str) -> Iterator[None]:
    """Record a report that is refused. The provider has signed it, so there is money that an operator has to settle."""
    try:
        yield
    except ValidationError as refused:
        errors = "; ".join(f"{each['pointer']}: {each['detail']}" for each in pointers(refused.detail))
        unmatched.record(report, f"The report is not valid. {errors}")
        raise
    except (APIException, payments.PaymentError) as refused:
        unmatched.record(report, str(refused))
        raise


def new_order(request: Request) -> dict[str, Any]:
    """Return the content of an order request: `sale`, and `quantities` by product id.

    Raises:
        ValidationError: the body is not valid.
    """
    return dict(NEW_ORDER.run_validation(json_object(request)))


def replay_header(*, replayed: bool) -> dict[str, str]:
    """Return the header that marks a repeated request, which has changed nothing."""
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
            201: OpenApiResponse(OrderSerializer, description="The order is saved."),
            202: OpenApiResponse(OrderSerializer, description="The order is queued. Location is its URL."),
        },
    )
    def post(self, request: Request) -> Response:
        """Place an order."""
        key = idempotency_key(request)
        placed = place_order(customer=customer_of(request), key=key, **new_order(request))
        # A rejected order was queued and answered with 202. Its key gets the same status again.
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


class Payments(APIView):
    """Payments that the payment provider reports."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(
        request=NewPaymentSerializer,
        parameters=[SIGNATURE_PARAMETER],
        examples=[EXAMPLE_PAYMENT],
        responses={
            200: OpenApiResponse(PaymentSerializer, description="The payment as first received, and its outcome.")
        },
    )
    def post(self, request: Request) -> Response:
        """Report a payment. Repeating the same reference returns the first answer."""
        report = signed_report(request)
        with recorded_if_refused(report):
            body = NewPaymentSerializer(data=json_object(request))
            body.is_valid(raise_exception=True)
            received = payments.receive_payment(**body.validated_data, report=report)
        return Response(
            PaymentSerializer(received.payment).data,
            headers=replay_header(replayed=received.replayed),
        )


class Chargebacks(APIView):
    """Chargebacks that the payment provider reports."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(
        request=NewChargebackSerializer,
        parameters=[SIGNATURE_PARAMETER],
        examples=[EXAMPLE_CHARGEBACK],
        responses={200: OpenApiResponse(ChargebackSerializer, description="The chargeback as first received.")},
    )
    def post(self, request: Request) -> Response:
        """Report a chargeback. The order is refunded. Repeating the same reference returns the first answer."""
        report = signed_report(request)
        with recorded_if_refused(report):
            body = NewChargebackSerializer(data=json_object(request))
            body.is_valid(raise_exception=True)
            received = returns.receive_chargeback(**body.validated_data, report=report)
        return Response(ChargebackSerializer(received.refund).data, headers=replay_header(replayed=received.replayed))


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
