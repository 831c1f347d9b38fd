"""The database models of the shop."""

from __future__ import annotations

import secrets
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.contrib.sessions.base_session import AbstractBaseSession
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.functions import MD5, Cast, Left, Now, Random
from django.utils.translation import get_language

from inventory.strategies import registry


def strategy_choices() -> list[tuple[str, str]]:
    """Return the names of the strategies, as choices of a model field.

    The field refers to this function and not to its result, so a new strategy needs no migration.
    """
    return [(name, name) for name in registry.NAMES]


def default_currency() -> str:
    """Return the currency of new sales, as the default of a model field.

    The field refers to this function and not to its result, so a changed setting needs no migration.
    """
    return str(settings.CURRENCY)


def new_slug() -> str:
    """Return a random slug, for a sale that is created without one."""
    return secrets.token_hex(4)


RANDOM_SLUG = Left(MD5(Cast(Random(), models.TextField())), 8)
"""SQL for a random slug. Postgres needs it when a web server of the previous version inserts a sale without a slug."""


def in_language(text: str, chinese: str) -> str:
    """Return `chinese` if the page is in Chinese and `chinese` is not empty; otherwise return `text`."""
    return chinese if chinese and get_language() == "zh-hans" else text


class Product(models.Model):
    """A product. `inventory` keeps the stock of its sku."""

    sku = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=200)
    name_zh = models.CharField(
        "name in Chinese",
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="For pages in Chinese. If it is empty, they show the name.",
    )
    description = models.TextField(blank=True, default="", db_default="", help_text="One or two sentences for buyers.")
    description_zh = models.TextField(
        "description in Chinese",
        blank=True,
        default="",
        db_default="",
        help_text="For pages in Chinese. If it is empty, they show the description.",
    )
    picture = models.CharField(
        max_length=300,
        blank=True,
        default="",
        db_default="",
        validators=[RegexValidator("^(https://|/)", "Enter an address that begins with https:// or /.")],
        help_text="Address of the picture, such as /static/shop/products/keyboard.svg. Its server: PICTURE_ORIGINS.",
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def shown_name(self) -> str:
        """The name in the language of the page."""
        return in_language(self.name, self.name_zh)

    @property
    def shown_description(self) -> str:
        """The description in the language of the page."""
        return in_language(self.description, self.description_zh)


class Sale(models.Model):
    """A time window in which products are sold, and the strategy that takes their stock."""

    class StockShown(models.TextChoices):
        EXACT = "exact", "The exact number"
        FEW = "few", "Only whether few are left"
        HIDDEN = "hidden", "Only whether it is sold out"

    name = models.CharField(max_length=200)
    name_zh = models.CharField(
        "name in Chinese",
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="For pages in Chinese. If it is empty, they show the name.",
    )
    slug = models.SlugField(
        max_length=60,
        unique=True,
        default=new_slug,
        db_default=RANDOM_SLUG,
        help_text="The sale’s page is /sales/ and this text.",
    )
    stock_shown = models.CharField(
        max_length=10,
        choices=StockShown,
        default=StockShown.EXACT,
        db_default=StockShown.EXACT,
        help_text="What pages and answers to orders tell of the units left. The number itself only if it is exact.",
    )
    opens_at = models.DateTimeField(db_index=True)
    closes_at = models.DateTimeField()
    strategy = models.CharField(max_length=40, choices=strategy_choices, default=registry.DEFAULT)
    currency = models.CharField(
        max_length=3,
        default=default_currency,
        validators=[RegexValidator("^[A-Z]{3}$", "Enter a currency code such as EUR.")],
        help_text="Currency of the prices: a code of ISO 4217, such as EUR. It cannot be changed later.",
    )
    waiting_room = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Let buyers wait for their turn: by a draw if they enter before the opening, else as they come.",
    )
    admitted_per_second = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Buyers whom the waiting room admits in a second. It can be changed during the sale.",
    )
    guest_checkout = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Let visitors buy as guests. A limit per customer is then only as strong as the cost of a new guest.",
    )
    preheated_at = models.DateTimeField(null=True, blank=True, editable=False)
    unloaded_at = models.DateTimeField(null=True, blank=True, editable=False)
    paused_at = models.DateTimeField(null=True, blank=True, editable=False)
    products = models.ManyToManyField(Product, through="SaleItem")

    class Meta:
        ordering = ["-opens_at"]
        permissions = [("pause_sale", "Can pause and resume sale")]
        constraints = [
            models.CheckConstraint(
                condition=Q(closes_at__gt=F("opens_at")),
                name="sale_closes_after_it_opens",
                violation_error_message="A sale closes after it opens.",
            ),
            models.CheckConstraint(
                condition=Q(waiting_room=False) | Q(admitted_per_second__isnull=False, admitted_per_second__gte=1),
                name="sale_waiting_room_admits",
                violation_error_message="A waiting room needs a number of buyers to admit in a second.",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **options: Any) -> None:
        """Save a sale, except for its times of preheating and pausing, which only `shop.sales` may change.

        Raises:
            ValidationError: the strategy was changed, but the old strategy may already have taken stock. Or the
                currency was changed, which is never allowed, because customers may already have seen the prices.
        """
        with transaction.atomic():
            before = Sale.objects.select_for_update(no_key=True).filter(pk=self.pk).first()
            if before is not None:
                if before.currency != self.currency:
                    raise ValidationError({"currency": f"The prices of “{before}” are in {before.currency}."})
                if before.strategy != self.strategy and before.strategy_is_fixed:
                    raise ValidationError({"strategy": f"“{before}” already sells with {before.strategy}."})
                self.preheated_at, self.unloaded_at = before.preheated_at, before.unloaded_at
                self.paused_at = before.paused_at
            super().save(*args, **options)

    @property
    def shown_name(self) -> str:
        """The name in the language of the page."""
        return in_language(self.name, self.name_zh)

    @property
    def strategy_is_fixed(self) -> bool:
        """Whether the strategy can no longer be changed, because it may already have taken stock."""
        return self.preheated_at is not None or self.orders.exists()

    @property
    def skus(self) -> list[str]:
        """The skus of the sale in sorted order."""
        return sorted(self.items.values_list("product__sku", flat=True))

    @property
    def is_loaded(self) -> bool:
        """Whether the stock is loaded: it was preheated, and not unloaded since."""
        return self.preheated_at is not None and self.unloaded_at is None


class SaleItem(models.Model):
    """A product in a sale, with its price and a limit for each customer."""

    sale = models.ForeignKey(Sale, on_delete=models.CASCADE, related_name="items", db_index=False)
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    price = models.DecimalField(max_digits=10, decimal_places=2, validators=[MinValueValidator(0)])
    limit = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Units that a customer may buy in this sale. Leave empty for no limit.",
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["sale", "product"], name="sale_offers_a_product_once")]

    def __str__(self) -> str:
        return f"{self.product} in {self.sale}"


class Order(models.Model):
    """An order of a customer. Only `shop.orders` changes it, each time with a guarded update of the state."""

    class State(models.TextChoices):
        PENDING = "pending"
        PAID = "paid"
        CANCELLED = "cancelled"
        EXPIRED = "expired"
        REJECTED = "rejected"
        REFUNDED = "refunded"

    STANDING = (State.PENDING, State.PAID)
    """The states in which the units of an order count as sold. Returned units do not count."""

    id = models.UUIDField(primary_key=True, editable=False)
    # Do not add an index: the index of the unique constraint begins with the customer, and each further index costs one
    # more write per order.
    customer = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="orders", db_index=False
    )
    sale = models.ForeignKey(Sale, on_delete=models.PROTECT, related_name="orders")
    state = models.CharField(max_length=20, choices=State, default=State.PENDING)
    key = models.CharField(max_length=128, help_text="Idempotency key of the customer.")
    body_hash = models.CharField(max_length=64, editable=False)
    created_at = models.DateTimeField()
    currency = models.CharField(max_length=3, editable=False)
    payable_from = models.DateTimeField(help_text="When the order was placed, or saved if it was queued.")
    reason = models.CharField(max_length=200, blank=True, default="", db_default="", help_text="Reason of a rejection.")

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["customer", "key"], name="order_key_once_per_customer")]
        indexes = [models.Index(fields=["payable_from"], condition=Q(state="pending"), name="order_pending_by_age")]

    def __str__(self) -> str:
        return str(self.id)

    @property
    def total(self) -> Decimal:
        return sum((item.price * item.quantity for item in self.items.all()), Decimal())


class OrderItem(models.Model):
    """Units of one sku in an order, with the name and price at the time of the order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="items", db_index=False)
    product = models.ForeignKey(Product, to_field="sku", db_column="sku", on_delete=models.PROTECT, db_index=False)
    quantity = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    price = models.DecimalField(max_digits=10, decimal_places=2)
    name = models.CharField(max_length=200, help_text="Name of the product when the order was placed.")
    returned = models.PositiveIntegerField(default=0, db_default=0, help_text="Units that came back after payment.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["order", "product"], name="order_names_a_sku_once"),
            models.CheckConstraint(condition=Q(returned__lte=F("quantity")), name="order_item_returned_at_most_once"),
        ]
        # Do not use `db_index` on the field, because it would add a second index for LIKE, which no query uses.
        indexes = [models.Index(fields=["product"], name="order_item_sku")]

    def __str__(self) -> str:
        return f"{self.quantity} × {self.product_id}"

    @property
    def shown_name(self) -> str:
        """The name in the language of the page; the name at the time of the order if the product was renamed since."""
        return self.product.shown_name if self.product.name == self.name else self.name


class Ending(models.Model):
    """When and by whom an order was cancelled, expired or rejected. A later payment may still pay the order.

    The transaction that ends the order writes the row. Orders that an earlier version of the shop ended have no row.
    """

    order = models.OneToOneField(Order, on_delete=models.CASCADE, primary_key=True, related_name="ending")
    state = models.CharField(max_length=20, choices=Order.State, help_text="State of the order from then on.")
    at = models.DateTimeField(db_default=Now())
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        related_name="+",
        help_text="Empty when a program of the shop ended it.",
    )

    def __str__(self) -> str:
        return f"{self.order_id} {self.state}"


class Payment(models.Model):
    """A payment for an order and its outcome. The row never changes. A `Refund` records money that is sent back."""

    class Outcome(models.TextChoices):
        PAID = "paid"
        REFUND_DUE = "refund_due", "Refund due"

    reference = models.CharField(max_length=128, unique=True, help_text="Reference of the payment provider.")
    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="payments")
    amount = models.DecimalField(max_digits=16, decimal_places=2)
    currency = models.CharField(max_length=3)
    received_at = models.DateTimeField(auto_now_add=True)
    outcome = models.CharField(max_length=20, choices=Outcome)
    note = models.CharField(max_length=200, blank=True, help_text="Why the payment has this outcome.")

    class Meta:
        ordering = ["-received_at", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["order"], condition=Q(outcome="paid"), name="payment_pays_an_order_once")
        ]

    def __str__(self) -> str:
        return self.reference


class Refund(models.Model):
    """Money of a payment that has to be sent back to the customer. It is due until `sent_at` is set.

    A chargeback is a refund, too. It is marked as sent from the start, because the customer has the money.
    """

    payment = models.ForeignKey(Payment, on_delete=models.PROTECT, related_name="refunds")
    amount = models.DecimalField(max_digits=16, decimal_places=2)
    note = models.CharField(max_length=200, blank=True, help_text="Why the money goes back.")
    chargeback = models.CharField(
        max_length=128, unique=True, null=True, blank=True, help_text="Reference of the provider that took it back."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    sent_at = models.DateTimeField(null=True, blank=True)
    sent_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )

    class Meta:
        ordering = ["created_at", "pk"]
        constraints = [
            models.CheckConstraint(
                condition=Q(chargeback=None, sent_at=None, sent_by=None)
                | Q(chargeback=None, sent_at__isnull=False, sent_by__isnull=False)
                | Q(chargeback__isnull=False, sent_at__isnull=False, sent_by=None),
                name="refund_sent_by_somebody_or_the_provider",
            )
        ]
        indexes = [models.Index(fields=["payment"], condition=Q(sent_at=None), name="refund_due")]

    def __str__(self) -> str:
        return f"Refund {self.pk}"


class BrowserSession(AbstractBaseSession):
    """A browser session and the account that is logged in. See `shop.accounts.sessions`."""

    account = models.IntegerField(null=True, db_index=True)


class Guest(models.Model):
    """A customer who buys without an account. They stay a guest until they confirm an e-mail address.

    See `shop.accounts.guests`.
    """

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True)
    email = models.EmailField(
        help_text="For the receipt. Nobody has proved that it is theirs, so it opens no account and gets no mail."
    )
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.email


class SignOut(models.Model):
    """How many times a user has signed out everywhere. Each sign-out ends the user's older tokens.

    See `shop.accounts.tokens`.
    """

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True)
    times = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.user_id} signed out {self.times} times"


class UnmatchedReport(models.Model):
    """A report of the payment provider that does not fit an order, its amount or its currency. An operator settles it.

    A row changes in two cases only: the provider sends the report again (`reason` may change), or it is settled.
    """

    digest = models.CharField(max_length=64, unique=True, editable=False, help_text="SHA-256 of the report.")
    report = models.TextField(help_text="The report as the provider has signed it.")
    reason = models.CharField(max_length=200, help_text="Why it was not booked.")
    received_at = models.DateTimeField(auto_now_add=True)
    settled_at = models.DateTimeField(null=True, blank=True)
    settled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        help_text="Empty when the provider repeated the report and it was booked.",
    )

    class Meta:
        ordering = ["-received_at", "-pk"]
        indexes = [models.Index(fields=["received_at"], condition=Q(settled_at=None), name="unmatched_report_open")]

    def __str__(self) -> str:
        return f"Report {self.pk}"


class Allowance(models.Model):
    """The units of a sku in a customer's orders in a sale, without returned units.

    They are counted even if the item has no limit, so that a limit that is set later includes earlier orders.
    """

    sale = models.ForeignKey(Sale, on_delete=models.CASCADE, db_index=False)
    customer = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    sku = models.CharField(max_length=64)
    taken = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["sale", "customer", "sku"], name="allowance_once_per_customer_and_sku")
        ]

    def __str__(self) -> str:
        return f"{self.taken} × {self.sku}"
