"""Guests: customers who buy without an account. A guest is logged in on one browser, and cannot log in elsewhere.

Nobody checks that the e-mail address of a guest is theirs. So it is stored apart from the addresses of accounts: it
opens no account, blocks no sign-up and gets no mail. A guest becomes an ordinary customer by choosing a name and a
password and confirming an address. Their orders stay with them, because the user is the same.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from allauth.account.adapter import DefaultAccountAdapter, get_adapter
from allauth.account.internal.userkit import filter_users_by_email
from allauth.account.models import EmailAddress
from allauth.core import ratelimit
from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now
from django.http import HttpRequest

from inventory.strategies import registry
from shop.accounts.errors import GuestExists, NameTaken
from shop.models import BrowserSession, Guest, Order

GUESTS = Guest.objects.exclude(user__emailaddress__verified=True)
"""Guests without a confirmed address. A guest who confirms an address is no longer a guest, but their row stays."""
IS_GUEST = Exists(GUESTS.filter(user=OuterRef("pk")))
"""Expression for a query of users: whether a user is a guest."""
SAME_FORM = timedelta(minutes=1)
"""Time within which a second form from the same browser counts as a repeat of the first, such as a double click."""
BATCH = 1000
"""Maximum number of guests that are deleted in one transaction."""


def guest_of(user: int) -> Guest | None:
    """Return the guest with this user id; None if the user is not a guest."""
    return GUESTS.filter(user=user).select_related("user").first()


def new_guest(email: str, *, browser: str = "") -> Guest:
    """Create a guest and their user, even if an account already has the address.

    The name of the user is made from the id of the browser, and is unique. So if a browser sends two forms at the same
    time, one creates the guest, and the other gets the same guest.

    Args:
        browser: random id of the browser; empty if it sends none.

    Raises:
        GuestExists: the browser has created a guest more than `SAME_FORM` ago.
    """
    name = f"guest-{hashlib.sha256((browser or secrets.token_hex()).encode()).hexdigest()[:16]}"
    try:
        with transaction.atomic():
            user = User.objects.create_user(name)
            return Guest.objects.create(user=user, email=email)
    except IntegrityError as error:
        just_made = GUESTS.filter(user__username=name, created_at__gt=Now() - SAME_FORM).select_related("user").first()
        if just_made is None:
            raise GuestExists from error
        return just_made


def make_account(request: HttpRequest, guest: Guest, *, username: str, email: str, password: str) -> None:
    """Give a guest a user name and a password, and mail them a link that confirms their e-mail address.

    They stay a guest until they follow the link.

    Raises:
        NameTaken: somebody else has taken the name since the form was checked.
        MailNotSent: everything was saved, but the mail was not sent. The shop sends it when the guest logs in.
    """
    guest.user.username = username
    guest.user.set_password(password)
    guest.email = email
    try:
        with transaction.atomic():
            # Delete other addresses that the guest typed earlier and never confirmed, except an address that they
            # confirm at this moment. Lock the rows of the addresses before the row of the user. The confirmation locks
            # in the same order, so the two cannot deadlock.
            unconfirmed = EmailAddress.objects.select_for_update().filter(user=guest.user, verified=False)
            for mistyped in unconfirmed.exclude(email=email.lower()):
                mistyped.delete()
            guest.user.save(update_fields=["username", "password"])
            guest.save(update_fields=["email"])
    except IntegrityError as error:
        raise NameTaken from error
    # Do not give the session a new key, as a log-in does. If the mail cannot be sent, the response has status 503, and
    # Django sends no session cookie with this status. The browser would keep the old key, so the guest would be logged
    # out and could no longer see their orders.
    request.session[HASH_SESSION_KEY] = guest.user.get_session_auth_hash()
    request.session.save()
    ask_to_confirm(request, guest)


def ask_to_confirm(request: HttpRequest, guest: Guest) -> None:
    """Send a guest the mail with the link that confirms their address, as for a new account.

    Do nothing if the address has just got such a mail. If another account already has the address, do not add the
    address to the guest's user. The mail then contains no such link, and says that the account exists. The response
    must not reveal which of the two mails was sent.

    Raises:
        MailNotSent: the mail cannot be sent now.
    """
    email = guest.email.lower()
    if not ratelimit.consume(request, action="confirm_email", key=email):
        return
    if any(user.pk != guest.pk for user in filter_users_by_email(email)):
        # Do not call the adapter's own method: it also hashes a password, to take as long as a sign-up. The caller of
        # this function has already hashed a password.
        DefaultAccountAdapter.send_account_already_exists_mail(get_adapter(), email)
    else:
        address, _ = EmailAddress.objects.get_or_create(user=guest.user, email=email, defaults={"primary": True})
        address.send_confirmation(request, signup=True)


def forget_old_guests() -> int:
    """Delete guests whose browser session has expired and who have no order, neither saved nor queued.

    Returns:
        The number of deleted guests.

    Raises:
        IntegrityError: one of these guests placed an order at the same moment. Try again later.
        RedisError: Redis does not answer, so the queued orders are unknown. No guest was deleted.
    """
    # Read the queue before Postgres: an order that has already left the queue is then found in Postgres.
    buyers = (each.buyer for each in registry.counters().reservations())
    queued = {int(customer) for _sale, _, customer in (buyer.partition(":") for buyer in buyers) if customer}
    age = timedelta(seconds=settings.SESSION_COOKIE_AGE)
    old = (
        GUESTS.filter(created_at__lt=Now() - age, user__is_staff=False)
        .exclude(pk__in=queued)
        .exclude(Exists(Order.objects.filter(customer=OuterRef("pk"))))
        .exclude(Exists(BrowserSession.objects.filter(account=OuterRef("pk"))))
    )
    total = 0
    while ids := list(old.values_list("pk", flat=True)[:BATCH]):
        # If a worker saves an order of one of these guests at this moment, the foreign key makes either the worker's
        # transaction or this one fail.
        User.objects.filter(pk__in=ids).delete()
        total += len(ids)
    return total
