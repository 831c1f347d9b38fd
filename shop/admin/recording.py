"""An admin button that records a payment by hand: a bank transfer, or a payment whose webhook never came."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.core.validators import RegexValidator
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from unfold.decorators import action as unfold_action
from unfold.widgets import UnfoldAdminDecimalFieldWidget, UnfoldAdminTextInputWidget

from shop.admin.read_only import ReadOnlyAdmin
from shop.api.serializers import REFERENCE
from shop.models import Order, Payment
from shop.orders import payments, unmatched

BY_OPERATOR = "operator/"
"""Prefix of the reference that the shop gives to a payment without a reference of the provider.

The id of the order follows the prefix, so a form that is sent twice records one payment. References of a provider
contain no slash, so they never begin with this prefix.
"""
RECORDED = "Recorded a payment"
"""Text in the history of an order whose payment was recorded by hand."""
EFFECTS = {
    Order.State.PENDING: "The order is then paid.",
    Order.State.PAID: "The order is already paid, so the money is then due for refund.",
    Order.State.CANCELLED: (
        "The order was cancelled. It is then paid if its units can be taken again; if they are sold, the money is due "
        "for refund."
    ),
    Order.State.EXPIRED: (
        "The order has expired. It is then paid if its units can be taken again; if they are sold, the money is due "
        "for refund."
    ),
}
OTHERWISE = "The order cannot be paid any more, so the money is then due for refund."


class PaymentForm(forms.Form):
    """The form with the payment that an operator has seen at the provider or the bank."""

    amount = forms.DecimalField(
        max_digits=16,
        decimal_places=2,
        min_value=Decimal(),
        widget=UnfoldAdminDecimalFieldWidget(attrs={"step": "0.01"}),
    )
    reference = forms.CharField(
        max_length=128,
        required=False,
        validators=[RegexValidator(rf"^{REFERENCE}\Z", "Enter 1 to 128 letters, digits and characters of ._~:-")],
        widget=UnfoldAdminTextInputWidget,
        help_text="The reference of the payment provider. If its report arrives later, it is the same payment.",
    )
    why = forms.CharField(
        label="How it was paid",
        max_length=200,
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="For example: By transfer, statement of 2026-11-27. Required if there is no reference.",
    )

    def __init__(self, order: Order, *args: Any) -> None:
        super().__init__(*args)
        self.fields["amount"].initial = order.total
        self.fields["amount"].help_text = f"The amount that has arrived, in {order.currency}."

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors and not (cleaned["reference"] or cleaned["why"]):
            self.add_error("reference", "Enter the reference, or say below how it was paid.")
        return cleaned


class RecordingAdmin(ReadOnlyAdmin):
    """The button “Record a payment” on the page of an order. It needs the permission “Can add payment”."""

    def has_record_payment_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return self.has_view_permission(request) and request.user.has_perm("shop.add_payment")

    @unfold_action(
        description="Record a payment", url_path="record-payment", permissions=["record_payment"], icon="payments"
    )
    def record_payment(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form, or record the payment if the form was sent."""
        order = self.get_object(request, object_id)
        if order is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        form = PaymentForm(order, request.POST or None)
        if request.method == "POST" and form.is_valid():
            self._record(request, order, **form.cleaned_data)
            return redirect("admin:shop_order_change", order.pk)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Record a payment for {order}",
            "effect": EFFECTS.get(Order.State(order.state), OTHERWISE),
            "form": form,
            "order": order,
        }
        return render(request, "shop/record_payment.html", context)

    def _record(self, request: HttpRequest, order: Order, *, amount: Decimal, reference: str, why: str) -> None:
        """Record the payment in the same way as a report of the provider, and show the operator the result."""
        reference = reference or f"{BY_OPERATOR}{order.pk}"
        money = f"{amount:.2f} {order.currency}"
        report = json.dumps(
            {
                "reference": reference,
                "order": str(order.pk),
                "amount": f"{amount:.2f}",
                "currency": order.currency,
                "recorded_by": request.user.get_username(),
                "why": why,
            },
            ensure_ascii=False,
        )
        try:
            received = payments.receive_payment(
                reference, order=order.pk, amount=amount, currency=order.currency, report=report
            )
        except payments.PaymentError as refused:
            unmatched.record(report, str(refused))
            self.log_change(request, order, f"A payment of {money} was not booked. {refused}")
            said = f"The payment of {money} was not booked. {refused} It is listed under “Unmatched reports”."
            self.message_user(request, said, messages.ERROR)
        except DatabaseError as error:
            said = f"The payment was not recorded. Try again. Postgres reports: {error}"
            self.message_user(request, said, messages.ERROR)
        else:
            payment = received.payment
            if received.replayed:
                said = (
                    f"The payment {payment} had been recorded before; nothing was changed. If this is another payment, "
                    "enter its own reference."
                )
                self.message_user(request, said, messages.WARNING)
                return
            _log(request, order, payment, why)
            if payment.outcome == Payment.Outcome.PAID:
                self.message_user(request, f"{order} is paid. {payment.note}".strip(), messages.SUCCESS)
            else:
                self.message_user(request, f"{money} is due for refund. {payment.note}", messages.WARNING)


def _log(request: HttpRequest, order: Order, payment: Payment, why: str) -> None:
    """Record the operator in the histories of payment and order. The timeline reads the history of the payment."""
    user = int(str(request.user.pk))
    LogEntry.objects.log_actions(user, [payment], ADDITION, change_message=why or "Recorded by hand.")
    LogEntry.objects.log_actions(user, [order], CHANGE, change_message=f"{RECORDED}.")
