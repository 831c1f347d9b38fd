"""API views for payments and chargebacks, which the payment provider reports in signed webhooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from shop.api.exception_handler import pointers
from shop.api.requests import as_object, raw_body, replay_header
from shop.api.serializers import (
    ChargebackSerializer,
    NewChargebackSerializer,
    NewPaymentSerializer,
    PaymentSerializer,
    unmatched_json,
)
from shop.orders import payments, returns, unmatched
from shop.payments import signatures
from shop.payments.provider import BadSignature, ReportKind, provider

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


@contextmanager
def recorded_if_refused(report: str) -> Iterator[None]:
    """Context manager that records a signed report if it is refused, because an operator has to settle its money."""
    try:
        yield
    except BadSignature:
        raise  # Do not record a report without a valid signature: anybody may have sent it.
    except ValidationError as refused:
        errors = "; ".join(f"{each['pointer']}: {each['detail']}" for each in pointers(refused.detail))
        unmatched.record(report, f"The report is not valid. {errors}")
        raise
    except (APIException, payments.PaymentError) as refused:
        unmatched.record(report, str(refused))
        raise


class Webhook(APIView):
    """Books the payment or chargeback that a webhook reports. The class of the provider checks and reads webhooks."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    def book(self, request: Request) -> HttpResponse:
        """Book a payment or a chargeback, and return the answer to the provider.

        Raises:
            LengthRequired, BodyTooLarge, BadSignature: the webhook is refused, and nothing is recorded.
            APIException, PaymentError: the webhook is signed, but cannot be booked. It is recorded as unmatched.
        """
        report, chosen = raw_body(request).decode(errors="replace"), provider()
        with recorded_if_refused(report):
            read = chosen.read_webhook(request)
            answer = Response({}) if read is None else BOOKS[read.kind](read.content, report)
        return HttpResponse(chosen.accepted, content_type="text/plain") if chosen.accepted else answer


class PaymentWebhook(Webhook):
    """Payments that the payment provider reports.

    A provider that you connect with a class of your own sends all its webhooks here, also those about chargebacks.
    """

    @extend_schema(
        request=NewPaymentSerializer,
        parameters=[SIGNATURE_PARAMETER],
        examples=[EXAMPLE_PAYMENT],
        responses={
            200: OpenApiResponse(
                PaymentSerializer,
                description="The payment as first received, and its outcome; or as recorded for the operator.",
            )
        },
    )
    def post(self, request: Request) -> HttpResponse:
        """Report a payment. Repeating the same reference returns the first answer."""
        return self.book(request)


class Chargebacks(Webhook):
    """Chargebacks that the payment provider reports."""

    @extend_schema(
        request=NewChargebackSerializer,
        parameters=[SIGNATURE_PARAMETER],
        examples=[EXAMPLE_CHARGEBACK],
        responses={200: OpenApiResponse(ChargebackSerializer, description="The chargeback as first received.")},
    )
    def post(self, request: Request) -> HttpResponse:
        """Report a chargeback. The order is refunded. Repeating the same reference returns the first answer."""
        return self.book(request)


def book_payment(content: Any, report: str) -> Response:
    """Book a payment. If its order was never saved, record the payment for an operator instead."""
    body = NewPaymentSerializer(data=as_object(content))
    body.is_valid(raise_exception=True)
    try:
        received = payments.receive_payment(**body.validated_data, report=report)
    except payments.NeverSaved as never:
        # Return success, so that the provider does not repeat the report: it could never be booked.
        return Response(unmatched_json(body.validated_data, unmatched.record(report, str(never))))
    return Response(PaymentSerializer(received.payment).data, headers=replay_header(replayed=received.replayed))


def book_chargeback(content: Any, report: str) -> Response:
    """Book a chargeback."""
    body = NewChargebackSerializer(data=as_object(content))
    body.is_valid(raise_exception=True)
    received = returns.receive_chargeback(**body.validated_data, report=report)
    return Response(ChargebackSerializer(received.refund).data, headers=replay_header(replayed=received.replayed))


BOOKS = {ReportKind.PAYMENT: book_payment, ReportKind.CHARGEBACK: book_chargeback}
"""The functions that book a report, by the kind of the report."""
