"""The admin pages of orders: list, details, cancel, refund, export. See also `recording` and `dead_letters`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_GET
from unfold.admin import TabularInline
from unfold.decorators import action as unfold_action
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from shop.admin.bulk import BatchResult, Failed, one_by_one, run_in_batches
from shop.admin.dead_letters import DeadLettersAdmin
from shop.admin.order_export import rows
from shop.admin.order_timeline import timeline
from shop.admin.read_only import to_the_second
from shop.admin.reasons import reason_field, run_on_one, run_with_reason
from shop.admin.refunds import link_to_refunds
from shop.models import Order, OrderItem, Payment, Refund
from shop.orders import payments
from shop.orders.ending import end_pending
from shop.orders.errors import NotReturnable
from shop.orders.returns import return_order

STATE_COLOURS = {
    "pending": "info",
    "paid": "success",
    "cancelled": "warning",
    "expired": "warning",
    "rejected": "danger",
    "refunded": "warning",
}
BUTTONS = {"cancel_one": Order.State.PENDING, "refund_items": Order.State.PAID}
"""For each of these buttons on the page of an order: the state of the order in which the page shows the button."""
READERS = "Operators read it in the timeline of the order. The customer does not see it."
REFUND_DUE = Exists(payments.refunds_due(Payment.objects.filter(order=OuterRef("pk"))))


class OrderItemInline(TabularInline):
    model = OrderItem
    extra = 0
    can_delete = False
    fields = readonly_fields = ("product", "name", "quantity", "price", "returned")

    def get_queryset(self, request: HttpRequest) -> QuerySet[OrderItem]:
        return super().get_queryset(request).select_related("product")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class PaymentInline(TabularInline):
    model = Payment
    extra = 0
    can_delete = False
    show_change_link = True
    fields = readonly_fields = ("reference", "amount", "currency", "outcome", "note", "received_at")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class OrderRefundFilter(admin.SimpleListFilter):
    """A list filter for orders with a refund that is due."""

    title = "refund"
    parameter_name = "refund"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("due", "Due")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Order]) -> QuerySet[Order]:
        return queryset.filter(REFUND_DUE) if self.value() == "due" else queryset


class RefundItemsForm(forms.Form):
    """A form for the total of returned units of each item, and the reason.

    Hidden fields contain the totals that the page has shown.
    """

    def __init__(self, order: Order, *args: Any) -> None:
        super().__init__(*args)
        self.items = list(order.items.all())
        for item in self.items:
            self.fields[f"item-{item.pk}"] = forms.IntegerField(
                label=f"{item.name} ({item.product_id})",
                min_value=item.returned,
                max_value=item.quantity,
                initial=item.returned,
                widget=UnfoldAdminIntegerFieldWidget,
                help_text=f"Units that have come back, of {item.quantity} at {item.price:.2f} {order.currency}.",
            )
            self.fields[f"shown-{item.pk}"] = forms.IntegerField(initial=item.returned, widget=forms.HiddenInput)
        self.fields["why"] = reason_field(READERS)

    def units(self, name: str) -> dict[str, int]:
        """Return the returned units by sku.

        Args:
            name: `item` for the totals that the operator has entered, `shown` for the totals that the page has shown.
        """
        return {str(item.product_id): self.cleaned_data[f"{name}-{item.pk}"] for item in self.items}


def may_see_payments(request: HttpRequest) -> bool:
    return admin.site.get_model_admin(Payment).has_view_permission(request)


def cancel_batch(orders: Sequence[Order], ends: float, *, by: int) -> BatchResult:
    """Cancel the pending orders of a batch. See `bulk.Act` for the first two arguments.

    Args:
        by: user id of the operator.
    """
    result, cancelled, failed = BatchResult(), set[UUID](), set[UUID]()
    ids = [order.pk for order in orders]
    try:
        cancelled.update(end_pending(ids, Order.State.CANCELLED, by=by))
    except DatabaseError:
        # Cancel each order in a transaction of its own. So an order whose units cannot be returned does not stop the
        # other orders.
        for place, order in enumerate(orders):
            if place and time.monotonic() >= ends:
                result.left = len(orders) - place
                orders = orders[:place]
                break
            try:
                cancelled.update(end_pending([order.pk], Order.State.CANCELLED, by=by))
            except DatabaseError as error:
                result.refused.append(f"{order} was not cancelled. Try again. Postgres reports: {error}")
                result.failed = True
                failed.add(order.pk)
    states = dict(Order.objects.filter(pk__in=ids).values_list("pk", "state"))
    for order in orders:
        state = states.get(order.pk)
        if order.pk in cancelled:
            result.changed.append(order)
        elif state == Order.State.CANCELLED:
            result.unchanged += 1
        elif state != Order.State.PENDING:
            result.refused.append(f"{order} was not cancelled: The order is {state}.")
        elif order.pk not in failed:
            result.refused.append(f"{order} was not cancelled: it is being changed. Try again.")
    return result


@admin.register(Order)
class OrderAdmin(DeadLettersAdmin):
    none_yet = "No orders yet. They appear here when customers order in an open sale."
    list_display = ("id", "customer", "sale", "ordered", "total_label", "state_label", "refund", "placed")
    list_filter = ("state", OrderRefundFilter, "sale")
    list_select_related = ("customer", "sale")
    list_before_template = "shop/export_link.html"
    change_form_outer_after_template = "shop/order_timeline.html"
    search_fields = ("id", "customer__username", "customer__guest__email", "key")
    search_help_text = (
        "Id, customer, address of a guest or idempotency key. Operators who may see payments can also search by their "
        "references"
    )
    fields = ("id", "state_label", "customer", "sale", "total_label", "refunds", "placed", "key", "reason")
    inlines = (OrderItemInline, PaymentInline)
    actions = ("cancel", "refund_orders")
    actions_detail = ("record_payment", "cancel_one", "refund_items")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Order]:
        return super().get_queryset(request).annotate(refund_due=REFUND_DUE).prefetch_related("items")

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        return (*self.search_fields, "payments__reference") if may_see_payments(request) else self.search_fields

    def get_urls(self) -> list[URLPattern]:
        export = self.admin_site.admin_view(self.export)
        return [path("export/", export, name="shop_order_export"), *super().get_urls()]

    @method_decorator(require_GET)
    def export(self, request: HttpRequest) -> HttpResponseBase:
        """Respond with the orders of the list as CSV, with the filters and search of the request."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            found = self.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            return redirect("admin:shop_order_changelist")
        # Announce now that the connection closes after the export. An export may last for minutes. If the process is
        # told to stop in this time, the headers have already been sent, so it could not announce this any more.
        headers = {"Content-Disposition": 'attachment; filename="orders.csv"', "Connection": "close"}
        lines = rows(found, references=may_see_payments(request))
        return StreamingHttpResponse(lines, content_type="text/csv; charset=utf-8", headers=headers)

    def get_inlines(self, request: HttpRequest, obj: Order | None) -> list[type[TabularInline]]:
        """Return the tables below the order. Leave out the table of payments if the order has none."""
        unpaid = obj is None or not obj.payments.exists()
        return [inline for inline in self.inlines if not (unpaid and inline is PaymentInline)]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if (order := kwargs.get("obj")) is not None:
            context["timeline"] = timeline(order, payments_too=may_see_payments(request))
        return super().render_change_form(request, context, *args, **kwargs)

    def has_cancel_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm("shop.change_order")

    @admin.action(permissions=["cancel"], description="Cancel pending orders and return their units")
    def cancel(self, request: HttpRequest, queryset: QuerySet[Order]) -> HttpResponse | None:
        def run(why: str) -> None:
            act = partial(cancel_batch, by=int(str(request.user.pk)))
            run_in_batches(self, request, queryset, act, done="cancelled", why=why, all_pages=True)

        text = "A pending order ends, its units are on sale again, and its customer cannot pay it any more."
        # A button "Cancel" could also mean to leave the page.
        verb = "Cancel orders" if len(queryset[:2]) > 1 else "Cancel order"
        return run_with_reason(self, request, queryset, run, verb=verb, text=text, help_text=READERS)

    @unfold_action(description="Cancel order", url_path="cancel", permissions=["cancel"], icon="cancel")
    def cancel_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the reason, and cancel one order."""
        return run_on_one(self, request, object_id, self.cancel)

    def get_actions_detail(self, request: HttpRequest, object_id: Any = None) -> list[Any]:
        """Return the buttons on the page of an order that fit the state of the order."""
        order = self.get_object(request, str(object_id))
        hidden = {name for name, state in BUTTONS.items() if order is None or order.state != state}
        names = {f"{self.opts.app_label}_{self.opts.model_name}_{name}" for name in hidden}
        return [each for each in super().get_actions_detail(request, object_id) if each.action_name not in names]

    def has_refund_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm("shop.change_order")

    @admin.action(permissions=["refund"], description="Refund paid orders and return their units")
    def refund_orders(self, request: HttpRequest, queryset: QuerySet[Order]) -> HttpResponse | None:
        def refund(order: Order) -> str | bool:
            if order.state == Order.State.REFUNDED:
                return False
            try:
                return_order(order.pk, by=int(str(request.user.pk)))
            except NotReturnable as refused:
                return f"{order} was not refunded: {refused}"
            except DatabaseError as error:
                raise Failed(f"{order} was not refunded. Try again. Postgres reports: {error}") from error
            return True

        def run(why: str) -> None:
            run_in_batches(self, request, queryset, one_by_one(refund), done="refunded", why=why)

        text = "The units of a paid order are on sale again, and its price is due for refund."
        return run_with_reason(self, request, queryset, run, verb="Refund", text=text, help_text=READERS)

    @unfold_action(description="Refund items", url_path="refund-items", permissions=["refund"], icon="undo")
    def refund_items(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form for returned units, or record the units if the form was sent."""
        order = self.get_object(request, object_id)
        if order is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        form = RefundItemsForm(order, request.POST or None)
        if form.is_valid():
            self.return_units(request, order, form)
            return redirect("admin:shop_order_change", object_id)
        title = f"Refund items of {order}"
        context = {**self.admin_site.each_context(request), "title": title, "form": form, "order": order}
        return render(request, "shop/refund_items.html", context)

    def return_units(self, request: HttpRequest, order: Order, form: RefundItemsForm) -> None:
        try:
            amount = return_order(
                order.pk, by=int(str(request.user.pk)), returned=form.units("item"), before=form.units("shown")
            )
        except (NotReturnable, DatabaseError) as refused:
            self.message_user(request, f"{order} was not refunded: {refused}", messages.WARNING)
        else:
            why = form.cleaned_data["why"]
            self.log_change(request, order, f"Returned units for {amount:.2f} {order.currency}. {why}")
            self.message_user(
                request, f"{order}: {amount:.2f} {order.currency} to refund; the units are back.", messages.SUCCESS
            )

    @display(description="Total")
    def total_label(self, order: Order) -> str:
        return f"{order.total:.2f}\N{NO-BREAK SPACE}{order.currency}"

    @display(description="Ordered")
    def ordered(self, order: Order) -> str:
        return ", ".join(
            f"{item.quantity}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{item.name}" for item in order.items.all()
        )

    @display(description="State", ordering="state", label=STATE_COLOURS)
    def state_label(self, order: Order) -> str:
        return order.state

    @display(description="Refund", label={"due": "danger"})
    def refund(self, order: Any) -> str | None:
        return "due" if order.refund_due else None

    @display(description="Refunds")
    def refunds(self, order: Order) -> str | None:
        refunds = Refund.objects.filter(payment__order=order).values_list("amount", "sent_at")
        sums = [
            f"{sum(amounts):.2f} {order.currency} {state}"
            for state, sent in (("due", False), ("sent", True))
            if (amounts := [amount for amount, at in refunds if bool(at) is sent])
        ]
        return link_to_refunds(", ".join(sums), q=order.pk) if sums else None

    @display(description="Placed", ordering="created_at")
    def placed(self, order: Order) -> str:
        return to_the_second(order.created_at)
