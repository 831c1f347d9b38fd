"""Guests: customers without an account of their own. They are logged in on one browser, and cannot log in elsewhere.

The address that a guest types is proved by nobody. It is kept apart from the addresses of accounts, so that it opens no
account, blocks no sign-up and gets no mail. A guest becomes a customer like any other by choosing a name and a password
and confirming an address. Their orders stay with them, as the account is the same.
"""

from __future__ import annotations

import secrets
from datetime import timedelta

from allauth.account.adapter import DefaultAccountAdapter, get_adapter
from allauth.account.internal.userkit import filter_users_by_email
from allauth.account.models import EmailAddress
from allauth.core import ratelimit
from django.conf import settings
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now
from django.http import HttpRequest

from shop.accounts.errors import NameTaken
from shop.models import BrowserSession, Guest, Order

GUESTS = Guest.objects.exclude(user__emailaddress__verified=True)
"""The guests who are still guests. The row of one who has confirmed an address stays, and means nothing."""
IS_GUEST = Exists(GUESTS.filter(user=OuterRef("pk")))
"""Whether a user of a query is a guest."""
BATCH = 1000
"""Guests that are removed in one transaction."""


def guest_of(user: int) -> Guest | None:
    """Return the guest whose user this is; None for any other customer."""
    return GUESTS.filter(user=user).select_related("user").first()


def new_guest(email: str) -> Guest:
    """Make a guest. Whether the address has an account makes no difference."""
    with transaction.atomic():
        user = User.objects.create_user(f"guest-{secrets.token_hex(8)}")
        return Guest.objects.create(user=user, email=email)


def make_account(request: HttpRequest, guest: Guest, *, username: str, email: str, password: str) -> None:
    """Give a guest a user name and a password, and ask them to confirm the address. Until then they stay a guest.

    Raises:
        NameTaken: the name was free when the form was checked.
        MailNotSent: everything was saved. The mail is sent when they log in.
    """
    guest.user.username = username
    guest.user.set_password(password)
    guest.email = email
    try:
        with transaction.atomic():
            guest.user.save(update_fields=["username", "password"])
            guest.save(update_fields=["email"])
            EmailAddress.objects.filter(user=guest.user).delete()  # one that they have mistyped before
    except IntegrityError as error:
        raise NameTaken from error
    update_session_auth_hash(request, guest.user)
    ask_to_confirm(request, guest)


def ask_to_confirm(request: HttpRequest, guest: Guest) -> None:
    """Mail a link that confirms the address of a guest, as to a new account.

    If an account has the address already, the mail says that instead, and no address is added. The answer must not
    depend on it.

    Raises:
        MailNotSent: try again later.
    """
    email = guest.email.lower()
    if not ratelimit.consume(request, action="confirm_email", key=email):
        return
    if any(user.pk != guest.pk for user in filter_users_by_email(email)):
        # Not the adapter's own: it hashes a password, to take as long as a sign-up. Here one was hashed already.
        DefaultAccountAdapter.send_account_already_exists_mail(get_adapter(), email)
    else:
        address, _ = EmailAddress.objects.get_or_create(user=guest.user, email=email, defaults={"primary": True})
        address.send_confirmation(request, signup=True)


def forget_old_guests() -> int:
    """Delete guests who have never ordered and whose browser cannot come back.

    Returns:
        Their number.

    Raises:
        IntegrityError: one of them has just ordered. Try again later.
    """
    age = timedelta(seconds=settings.SESSION_COOKIE_AGE)
    old = (
        GUESTS.filter(created_at__lt=Now() - age)
        .exclude(Exists(Order.objects.filter(customer=OuterRef("pk"))))
        .exclude(Exists(BrowserSession.objects.filter(account=OuterRef("pk"))))
    )
    total = 0
    while ids := list(old.values_list("pk", flat=True)[:BATCH]):
        # An order that is saved meanwhile and this cannot both be committed: the foreign key lets one of them fail.
        User.objects.filter(pk__in=ids).delete()
        total += len(ids)
    return total
