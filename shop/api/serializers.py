"""What goes in and out, by field."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from shop.models import Order, Payment
from shop.orders import receipts
from shop.orders.receipts import Receipt

MAX_ID = 2**63 - 1
MAX_LINES = 20
MAX_QUANTITY = 1000


class StrictInteger(serializers.IntegerField):
    """An integer as JSON has it: "1", 1.0 and true are mistakes of the caller, not numbers."""

    def to_internal_value(self, data: Any) -> int:
        if type(data) is not int:
            self.fail("invalid")
        return super().to_internal_value(data)


class LineSerializer(serializers.Serializer[Any]):
    product = StrictInteger(min_value=1, max_value=MAX_ID)
    quantity = StrictInteger(min_value=1, max_value=MAX_QUANTITY)


class NewOrderSerializer(serializers.Serializer[Any]):
    """The body of an order. `validated_data["quantities"]` has the units by product."""

    sale = StrictInteger(min_value=1, max_value=MAX_ID)
    items: serializers.ListSerializer[Any] = serializers.ListSerializer(
        child=LineSerializer(), min_length=1, max_length=MAX_LINES
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        quantities = {line["product"]: line["quantity"] for line in attrs["items"]}
        if len(quantities) != len(attrs["items"]):
            raise serializers.ValidationError({"items": ["Name each product once."]})
        return {"sale": attrs["sale"], "quantities": quantities}


class OrderItemSerializer(serializers.Serializer[Any]):
    product = serializers.IntegerField()
    sku = serializers.CharField()
    name = serializers.CharField()
    quantity = serializers.IntegerField()
    price = serializers.DecimalField(max_digits=10, decimal_places=2)


class OrderSerializer(serializers.Serializer[Any]):
    # The fields are for the schema, where a docstring would stand too: asked one by one they cost more than the order.
    id = serializers.UUIDField()
    sale = serializers.IntegerField()
    state = serializers.ChoiceField(choices=[("queued", "Queued"), *Order.State.choices])
    place = serializers.IntegerField(required=False, allow_null=True, default=None, help_text="In the queue, from 1.")
    reason = serializers.CharField(help_text="Why it was rejected.")
    items = OrderItemSerializer(many=True)
    total = serializers.DecimalField(max_digits=14, decimal_places=2)
    created_at = serializers.DateTimeField()
    pay_by = serializers.DateTimeField(allow_null=True, help_text="Null while it is queued: nobody can pay it yet.")

    def to_representation(self, order: Order) -> dict[str, Any]:
        return shown(receipts.of_row(order))


def shown(order: Receipt, *, queued: bool = False, place: int | None = None) -> dict[str, Any]:
    """An order as the API shows it.

    Args:
        queued: it has no state of its own yet.
        place: in the queue, from 1.
    """
    payable_from = order.payable_from
    return {
        "id": str(order.pk),
        "sale": order.sale,
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
            }
            for item in order.items
        ],
        "total": f"{order.total:.2f}",
        "created_at": moment(order.created_at),
        "pay_by": moment(payable_from + timedelta(seconds=settings.ORDER_TTL)) if payable_from else None,
    }


def moment(at: datetime) -> str:
    """A moment as the API writes it: in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


AMOUNT = r"[0-9]{1,14}\.[0-9]{2}"
REFERENCE = r"[A-Za-z0-9._~:-]{1,128}"


@extend_schema_field({"type": "string", "pattern": f"^{AMOUNT}$"})
class AmountField(serializers.DecimalField):
    """An amount as the API writes it: a text with two decimals. A JSON number may have lost a cent on its way."""

    def to_internal_value(self, data: Any) -> Decimal:
        if not isinstance(data, str) or not re.fullmatch(AMOUNT, data):
            self.fail("invalid")
        return super().to_internal_value(data)


@extend_schema_field({"type": "string", "pattern": f"^{REFERENCE}$"})
class ReferenceField(serializers.CharField):
    """A payment provider's own name of a payment."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or not re.fullmatch(REFERENCE, data):
            self.fail("invalid")
        return data


class WrittenUUIDField(serializers.UUIDField):
    """A UUID as a text: a number is a mistake of the caller."""

    def to_internal_value(self, data: Any) -> UUID:
        if not isinstance(data, str):
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


class NewPaymentSerializer(serializers.Serializer[Any]):
    """What a payment provider says of a payment."""

    reference = ReferenceField(help_text="The provider's own, a new one for each payment.")
    order = WrittenUUIDField()
    amount = AmountField(max_digits=16, decimal_places=2, help_text="All that the order costs.")


class PaymentSerializer(serializers.Serializer[Any]):
    reference = serializers.CharField()
    order = serializers.UUIDField(source="order_id")
    amount = serializers.DecimalField(max_digits=16, decimal_places=2)
    outcome = serializers.ChoiceField(
        choices=Payment.Outcome.choices,
        help_text="`refund_due`: the money goes back; the order is as it was.",
    )
    note = serializers.CharField(help_text="Why it is to be refunded, or that the units were taken again.")
    received_at = serializers.DateTimeField()


class OfferedSerializer(serializers.Serializer[Any]):
    product = serializers.IntegerField()
    sku = serializers.CharField()
    name = serializers.CharField()
    price = serializers.DecimalField(max_digits=10, decimal_places=2)
    limit = serializers.IntegerField(allow_null=True, help_text="Units a customer may have; null for any number.")


class OfferSerializer(serializers.Serializer[Any]):
    sale = serializers.IntegerField()
    name = serializers.CharField()
    opens_at = serializers.DateTimeField()
    closes_at = serializers.DateTimeField()
    items = serializers.SerializerMethodField()

    @extend_schema_field(OfferedSerializer(many=True))
    def get_items(self, offer: Any) -> Any:
        return OfferedSerializer(offer.products.values(), many=True).data


# Making a serializer copies all its fields, which costs more than it then does. Validating keeps nothing in it, so on
# the way of an order this one serves all requests and threads.
NEW_ORDER = NewOrderSerializer()
