"""The admin pages of products and of the sales that offer them."""

from __future__ import annotations

import hashlib
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.forms import BaseInlineFormSet
from django.forms.formsets import DELETION_FIELD_NAME
from django.http import HttpRequest
from unfold.admin import StackedInline
from unfold.decorators import display

from inventory.models import StockItem
from shop import clock
from shop.admin.checked import CheckedAdmin
from shop.admin.closing import ClosingAdmin
from shop.admin.extending import ExtendingAdmin
from shop.admin.pausing import PausingAdmin
from shop.admin.preflight import PreflightAdmin
from shop.admin.read_only import to_the_second
from shop.admin.sale_actions import phase
from shop.admin.sale_figures import figures_of
from shop.admin.strategy_help import help_text
from shop.models import Product, Sale, SaleItem
from shop.sales import lifecycle, load_tests


@admin.register(Product)
class ProductAdmin(CheckedAdmin):
    none_yet = "No products yet. Add one, then its stock, then a sale that offers it."
    list_display = ("name", "sku")
    search_fields = ("name", "name_zh", "sku")

    def get_readonly_fields(self, request: HttpRequest, obj: Product | None = None) -> tuple[str, ...]:
        return ("sku",) if obj else ()


class SaleForm(forms.ModelForm):
    """The form of a sale. If the sale has changed since the page was opened, the form is refused.

    Otherwise it could write an old closing time, and so reopen a sale that was closed meanwhile.
    """

    shown = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "shown" in self.fields:
            self.fields["shown"].initial = digest(self.instance)
        if "strategy" in self.fields:
            self.fields["strategy"].help_text = help_text()

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        # `self.instance` still has the values of the row, which `SaleAdmin.get_object` has locked.
        if cleaned.get("shown") and cleaned["shown"] != digest(self.instance):
            raise forms.ValidationError(
                "The sale has changed since this page was opened; perhaps it was closed. Nothing was saved. "
                "Open the page again and repeat your change."
            )
        self._keep_the_opening(cleaned)
        return cleaned

    def clean_slug(self) -> str:
        slug = str(self.cleaned_data["slug"])
        if slug.startswith(load_tests.SLUG_PREFIX) and slug != self.instance.slug:
            raise forms.ValidationError(
                f"The storefront lists no sale whose slug begins with {load_tests.SLUG_PREFIX}, because load tests use "
                "that. Choose another slug."
            )
        return slug

    def _keep_the_opening(self, cleaned: dict[str, Any]) -> None:
        """Refuse to change an opening time in the past to another time in the past, if the sale has a waiting room.

        The waiting room computes from the opening time how many customers it has admitted.
        """
        opens_at = cleaned.get("opens_at")
        before = self.instance
        if not (opens_at and before.pk and before.waiting_room):
            return
        if before.opens_at.replace(microsecond=0) == opens_at:
            cleaned["opens_at"] = before.opens_at  # The form shows no fractions of a second.
        elif max(before.opens_at, opens_at) <= clock.now():
            text = "The sale has opened, and its waiting room counts from then on. Enter a future time, or keep it."
            self.add_error("opens_at", text)


def digest(sale: Sale) -> str:
    """Return a digest of all values that the form of the sale can change."""
    if sale.pk is None:
        return ""
    items = sale.items.order_by("pk").values_list("pk", "product", "price", "limit")
    shown = (sale.name, sale.name_zh, sale.slug, sale.stock_shown, sale.opens_at, sale.closes_at)
    others = (sale.strategy, sale.currency, sale.waiting_room, sale.admitted_per_second, sale.guest_checkout)
    return hashlib.sha256(repr((shown, others, *items)).encode()).hexdigest()


class SaleItemFormSet(BaseInlineFormSet):
    """The formset of the items of a sale. It refuses a product that another sale offers at the same time."""

    def clean(self) -> None:
        super().clean()
        if self.instance.opens_at is None or self.instance.closes_at is None:
            return  # The form of the sale reports missing times.
        kept = [form.cleaned_data for form in self.forms if not form.cleaned_data.get(DELETION_FIELD_NAME)]
        products = [item["product"] for item in kept if item.get("product")]
        if problems := list(lifecycle.overlaps(self.instance, products)):
            raise forms.ValidationError(problems)


class SaleItemInline(StackedInline):
    model = SaleItem
    formset = SaleItemFormSet
    extra = 0
    autocomplete_fields = ("product",)
    fields = (("product", "price", "limit"),)

    def get_queryset(self, request: HttpRequest) -> QuerySet[SaleItem]:
        return super().get_queryset(request).select_related("product")


class SaleStateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "Open"), ("coming", "To come"), ("paused", "Paused"), ("over", "Over")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Sale]) -> QuerySet[Sale]:
        match self.value():
            case "open":
                return queryset.filter(opens_at__lte=Now(), closes_at__gt=Now(), paused_at=None)
            case "coming":
                return queryset.filter(opens_at__gt=Now(), paused_at=None)
            case "paused":
                return queryset.filter(closes_at__gt=Now(), paused_at__isnull=False)
            case "over":
                return queryset.filter(closes_at__lte=Now())
        return queryset


@admin.register(Sale)
class SaleAdmin(ClosingAdmin, PausingAdmin, ExtendingAdmin, PreflightAdmin):
    none_yet = "No sales yet. Add one when the products that it offers have stock."
    form = SaleForm
    list_display = ("name", "state", "opens", "closes", "sold", "left", "revenue", "strategy", "preheated")
    list_filter = (SaleStateFilter, "guest_checkout")
    search_help_text = "Name or slug"
    search_fields = ("name", "name_zh", "slug")
    prepopulated_fields = {"slug": ("name",)}
    inlines = (SaleItemInline,)
    actions = ("preheat", "pause", "resume", "close")
    actions_detail = ("preflight", "preheat_one", "pause_one", "resume_one", "extend", "close_one")
    # Put labels above the fields, so that an item takes one line on a wide screen and is readable on a phone. Newer
    # versions of unfold ignore this.
    compressed_fields = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Sale]:
        # Leave out the sales that load tests of the lab make: they have no strategy and sell nothing in the shop's
        # tables.
        return super().get_queryset(request).exclude(strategy="").annotate(read_at=Now())

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist: Any = super().get_changelist_instance(request)
        figures = figures_of(changelist.result_list)
        for sale in changelist.result_list:
            sale.figures = figures[sale.pk]
        return changelist

    def get_fields(self, request: HttpRequest, obj: Sale | None = None) -> tuple[Any, ...]:
        fields = (
            *("name", "name_zh", "slug", ("opens_at", "closes_at"), ("strategy", "currency"), "stock_shown"),
            *(("waiting_room", "admitted_per_second"), "guest_checkout", "preheated_label"),
        )
        return (*fields, "shown") if obj and self.has_change_permission(request, obj) else fields

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Leave the slug empty, because a script on the page fills it in while the operator types the name."""
        return {"slug": "", **super().get_changeform_initial_data(request)}

    def get_readonly_fields(self, request: HttpRequest, obj: Sale | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("preheated_label",)
        fixed = ("strategy",) if obj.strategy_is_fixed else ()
        return ("preheated_label", "currency", *fixed)

    def has_delete_permission(self, request: HttpRequest, obj: Sale | None = None) -> bool:
        """Refuse to delete a sale that was preheated or has orders, because Redis may hold its stock."""
        return super().has_delete_permission(request, obj) and not (obj and obj.strategy_is_fixed)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Sale | None:
        """Return the sale. Lock it if a form changes or deletes it, so that nobody preheats it at the same time.

        Django opens a transaction only for these forms. Other views, such as the history, get the sale without a lock.
        """
        sale = super().get_object(request, object_id, from_field)
        may_write = self.has_change_permission(request, sale) or self.has_delete_permission(request, sale)
        if sale is None or not may_write or not transaction.get_connection().in_atomic_block:
            return sale
        return Sale.objects.select_for_update(no_key=True).filter(pk=sale.pk).first()

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:  # noqa: FBT001
        """Save the items. If they have changed in a loaded sale, preheat it again, to load the stock of new items."""
        super().save_related(request, form, formsets, change)
        stocked = StockItem.objects.values("sku")
        for item in form.instance.items.exclude(product__sku__in=stocked).select_related("product"):
            missing = f"There is no stock of {item.product.sku}. Add a delivery before the sale opens."
            self.message_user(request, missing, messages.WARNING)
        this_sale = Sale.objects.filter(pk=form.instance.pk, closes_at__gt=Now())
        if form.instance.is_loaded and any(items.has_changed() for items in formsets):
            transaction.on_commit(lambda: self.preheat(request, this_sale))

    @display(description="State", label={"open": "success", "to come": "info", "paused": "warning"})
    def state(self, sale: Sale) -> str:
        return "paused" if sale.paused_at and phase(sale) != "over" else phase(sale)

    @display(description="Opens", ordering="opens_at")
    def opens(self, sale: Sale) -> str:
        return to_the_second(sale.opens_at)

    @display(description="Closes", ordering="closes_at")
    def closes(self, sale: Sale) -> str:
        return to_the_second(sale.closes_at)

    @display(description="Sold")
    def sold(self, sale: Any) -> int:
        return sale.figures.sold

    @display(description="Left")
    def left(self, sale: Any) -> int:
        return sale.figures.left

    @display(description="Revenue")
    def revenue(self, sale: Any) -> str:
        return f"{sale.figures.revenue:.2f} {sale.currency}"

    @display(description="Preheated at")
    def preheated_label(self, sale: Sale) -> str | None:
        return to_the_second(sale.preheated_at) if sale.preheated_at else None

    @display(description="Preheated", label={"yes": "success"})
    def preheated(self, sale: Sale) -> str | None:
        return "yes" if sale.preheated_at else None
