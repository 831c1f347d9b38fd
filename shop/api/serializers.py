"""Serializers of the REST API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from shop.models import Order, Payment, UnmatchedReport, default_currency
from shop.orders import receipts
from shop.orders.receipts import Receipt

MAX_ID = 2**63 - 1
MAX_ITEMS = 20
MAX_QUANTITY = 1000
UNMATCHED = "unmatched"
"""The outcome of a payment that is not booked, because its order was never saved."""
AMOUNT = r"[0-9]{1,14}\.[0-9]{2}"


class StrictInteger(serializers.IntegerField):
    """A JSON integer. It refuses "1", 1.0 and true, which Django REST framework would accept."""

    default_error_messages: ClassVar = {"invalid": "Send a whole number without quotes or decimals, such as 1."}

    def to_internal_value(self, data: Any) -> int:
        if type(data) is not int:
            self.fail("invalid")
        return super().to_internal_value(data)


@extend_schema_field({"type": "string", "pattern": f"^{AMOUNT}$"})
class AmountField(serializers.DecimalField):
    """A string with two decimals. It refuses JSON numbers, because floating-point numbers may be off by a cent."""

    default_error_messages: ClassVar = {"invalid": 'Send a string with two decimals, such as "10.00".'}

    def to_internal_value(self, data: Any) -> Decimal:
        if not isinstance(data, str) or not re.fullmatch(AMOUNT, data):
            self.fail("invalid")
        return super().to_internal_value(data)


class NewOrderItemSerializer(serializers.Serializer[Any]):
    product = StrictInteger(min_value=1, max_value=MAX_ID)
    quantity = StrictInteger(min_value=1, max_value=MAX_QUANTITY)
    price = AmountField(
        max_digits=16,
        decimal_places=2,
        error_messages={
            "required": "Send the price of one unit that the customer was shown. GET /api/sales/<id>/ has it."
        },
        help_text="Price of one unit that the customer was shown. If it has changed, the answer is `price-changed`.",
    )


class NewOrderSerializer(serializers.Serializer[Any]):
    """The body of an order request."""

    # The validated data has `quantities` and `expected_prices` by product id. This is a comment, because the docstring
    # appears in the OpenAPI schema.
    sale = StrictInteger(min_value=1, max_value=MAX_ID)
    items: serializers.ListSerializer[Any] = serializers.ListSerializer(
        child=NewOrderItemSerializer(), min_length=1, max_length=MAX_ITEMS
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        quantities = {item["product"]: item["quantity"] for item in attrs["items"]}
        if len(quantities) != len(attrs["items"]):
            raise serializers.ValidationError({"items": ["List each product only once."]})
        prices = {item["product"]: item["price"] for item in attrs["items"]}
        return {"sale": attrs["sale"], "quantities": quantities, "expected_prices": prices}


class OrderItemSerializer(serializers.Serializer[Any]):
    product = serializers.IntegerField()
    sku = serializers.CharField()
    name = serializers.CharField()
    quantity = serializers.IntegerField()
    price = serializers.DecimalField(max_digits=10, decimal_places=2)
    returned = serializers.IntegerField(help_text="Units that came back after payment.")


class OrderSerializer(serializers.Serializer[Any]):
    # These fields are only for the OpenAPI schema. Rendering through them would take longer than placing the order.
    # This is a comment, because a docstring would appear in the schema.
    id = serializers.UUIDField()
    sale = serializers.IntegerField(allow_null=True, help_text="Null for an order that the shop has lost.")
    state = serializers.ChoiceField(choices=[("queued", "Queued"), *Order.State.choices])
    place = serializers.IntegerField(required=False, allow_null=True, default=None, help_text="Queue place, from 1.")
    reason = serializers.CharField(help_text="Why the order was rejected; empty otherwise.")
    items = OrderItemSerializer(many=True)
    total = serializers.DecimalField(max_digits=14, decimal_places=2)
    currency = serializers.CharField(help_text="Code of ISO 4217. Empty if the sale was deleted before it was saved.")
    created_at = serializers.DateTimeField()
    pay_by = serializers.DateTimeField(allow_null=True, help_text="Null unless the order is `pending`.")

    def to_representation(self, order: Order) -> dict[str, Any]:
        return order_json(receipts.of_row(order))


def order_json(order: Receipt, *, queued: bool = False, place: int | None = None) -> dict[str, Any]:
    """Return the JSON of an order.

    Args:
        queued: whether the order is not saved yet, so that its state is `queued`.
        place: place in the queue, from 1.
    """
    payable_from = order.payable_from if order.state == Order.State.PENDING.value else None
    return {
        "id": str(order.pk),
        "sale": order.sale or None,
        "state": "queued" if queued else order.state,
        "place": place,
        "reason": order.reason,
        "items": [
            {
                "product": item.product,
                "sku": item.sku,
                "name": item.name,
                "quantity": item.quantity,
                "price": f"{item.price:.2f}",
                "returned": item.returned,
            }
            for item in order.items
        ],
        "total": f"{order.total:.2f}",
        "currency": order.currency,
        "created_at": moment(order.created_at),
        "pay_by": moment(payable_from + timedelta(seconds=settings.ORDER_TTL)) if payable_from else None,
    }


def moment(at: datetime) -> str:
    """Format a time in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


REFERENCE = r"[A-Za-z0-9._~:-]{1,128}"
CURRENCY = r"[A-Z]{3}"


@extend_schema_field({"type": "string", "pattern": f"^{REFERENCE}$"})
class ReferenceField(serializers.CharField):
    """The reference that a payment provider gives to a payment."""

    default_error_messages: ClassVar = {"invalid": "Send a string of 1 to 128 letters, digits and characters of ._~:-"}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or not re.fullmatch(REFERENCE, data):
            self.fail("invalid")
        return data


@extend_schema_field({"type": "string", "pattern": f"^{CURRENCY}$"})
class CurrencyField(serializers.CharField):
    """A currency code of ISO 4217 in capitals. The default is the currency of the shop."""

    default_error_messages: ClassVar = {"invalid": 'Send a currency code of three capitals, such as "EUR".'}

    def __init__(self) -> None:
        super().__init__(default=default_currency, help_text="Without it: the currency of the shop, `CURRENCY`.")

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or not re.fullmatch(CURRENCY, data):
            self.fail("invalid")
        return data


class WrittenUUIDField(serializers.UUIDField):
    """A UUID as a string. It refuses numbers, which Django REST framework would accept."""

    def to_internal_value(self, data: Any) -> UUID:
        if not isinstance(data, str):
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


class NewPaymentSerializer(serializers.Serializer[Any]):
    """A payment as the payment provider reports it."""

    reference = ReferenceField(help_text="Reference of the provider, a new one for each payment.")
    order = WrittenUUIDField()
    amount = AmountField(max_digits=16, decimal_places=2, help_text="Total of the order.")
    currency = CurrencyField()


class PaymentSerializer(serializers.Serializer[Any]):
    reference = serializers.CharField()
    order = serializers.UUIDField(source="order_id")
    amount = serializers.DecimalField(max_digits=16, decimal_places=2)
    currency = serializers.CharField()
    outcome = serializers.ChoiceField(
        choices=[*Payment.Outcome.choices, (UNMATCHED, "Unmatched")],
        help_text=f"`refund_due`: the payment is to be refunded; the order is unchanged. `{UNMATCHED}`: the order was "
        "never saved; an operator settles the payment.",
    )
    note = serializers.CharField(
        help_text="The reason for the refund, or for no matching order. For a late payment: that its units were taken "
        "again."
    )
    received_at = serializers.DateTimeField()


def unmatched_json(payment: Mapping[str, Any], recorded: UnmatchedReport) -> Any:
    """Return the JSON of a reported payment for an order that was never saved."""
    outcome = {"outcome": UNMATCHED, "note": recorded.reason, "received_at": recorded.received_at}
    return PaymentSerializer({**payment, "order_id": payment["order"], **outcome}).data


class NewChargebackSerializer(serializers.Serializer[Any]):
    """A chargeback as the payment provider reports it."""

    reference = ReferenceField(help_text="Reference of the provider, a new one for each chargeback.")
    payment = ReferenceField(help_text="Reference of the payment.")
    amount = AmountField(max_digits=16, decimal_places=2, help_text="What the shop still has of the payment.")
    currency = CurrencyField()


class ChargebackSerializer(serializers.Serializer[Any]):
    reference = serializers.CharField(source="chargeback")
    payment = serializers.CharField(source="payment.reference")
    order = serializers.UUIDField(source="payment.order_id")
    amount = serializers.DecimalField(max_digits=16, decimal_places=2)
    currency = serializers.CharField(source="payment.currency")
    note = serializers.CharField(help_text="The refund that it replaces, if one was due.")
    received_at = serializers.DateTimeField(source="created_at")


class OfferItemSerializer(serializers.Serializer[Any]):
    product = serializers.IntegerField()
    sku = serializers.CharField()
    name = serializers.CharField()
    price = serializers.DecimalField(max_digits=10, decimal_places=2)
    limit = serializers.IntegerField(allow_null=True, help_text="Units that a customer may buy; null for no limit.")


class OfferSerializer(serializers.Serializer[Any]):
    sale = serializers.IntegerField()
    name = serializers.CharField()
    opens_at = serializers.DateTimeField()
    closes_at = serializers.DateTimeField()
    paused = serializers.BooleanField(help_text="Whether an operator has paused the sale. It takes no orders now.")
    currency = serializers.CharField(help_text="Currency of the prices: a code of ISO 4217.")
    waiting_room = serializers.BooleanField(help_text="Whether an order needs a ticket of the sale's waiting room.")
    guest_checkout = serializers.BooleanField(help_text="Whether visitors may buy on the sale's page as guests.")
    items = serializers.SerializerMethodField()

    @extend_schema_field(OfferItemSerializer(many=True))
    def get_items(self, offer: Any) -> Any:
        return OfferItemSerializer(offer.products.values(), many=True).data


class StandingSerializer(serializers.Serializer[Any]):
    """A customer's standing in a waiting room."""

    # These fields and the docstring are only for the OpenAPI schema. `shop.api.waiting` renders the body.
    state = serializers.ChoiceField(
        choices=["outside", "draw", "waiting", "admitted", "ended"],
        help_text="`outside`: you have no place. `draw`: you are in the draw at the opening. `waiting`: your turn "
        "is still to come. `admitted`: order with the ticket. `ended`: your turn is over; enter again.",
    )
    entered = serializers.IntegerField(help_text="Places that were given.")
    place = serializers.IntegerField(
        allow_null=True, help_text="Your number in the line. Null outside and before the draw."
    )
    ahead = serializers.IntegerField(
        allow_null=True, help_text="Customers before you whose turn has not come. Null unless `waiting` or `admitted`."
    )
    estimate = serializers.IntegerField(
        allow_null=True, help_text="Seconds until your turn, at the present rate. Null when `ahead` is."
    )
    poll_after = serializers.IntegerField(help_text="Seconds after which to look again, not earlier.")
    ticket = serializers.CharField(allow_null=True, help_text="Send it as `Waiting-Ticket` with your orders.")
    ends_at = serializers.DateTimeField(allow_null=True, help_text="When the ticket ends.")


NEW_ORDER = NewOrderSerializer()
"""The serializer that all order requests share, because making a serializer takes longer than the validation.

Threads can share it, because validation stores nothing in it.
"""
