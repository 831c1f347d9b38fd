"""The account page of a buyer, and the decorator for all pages about accounts."""

from __future__ import annotations

from functools import wraps
from math import ceil
from typing import Any, cast

from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe
from redis import RedisError

from inventory.outages import outages
from shop.accounts import guests
from shop.accounts.adapter import LIMITING
from shop.accounts.errors import HashingBusy, MailNotSent, NameTaken, NotNow, TooManyGuesses
from shop.accounts.tokens import sign_out_everywhere
from shop.pages.page import PageRefused, View, page


def account_page(view: View) -> View:
    """Decorate a view about accounts: show every refusal as a page, and forbid caching. See `page`."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **values: Any) -> HttpResponseBase:
        try:
            return view(request, *args, **values)
        except NotNow as error:
            raise _not_now(error) from error
        except MailNotSent as error:
            later = _("No mail can be sent at the moment. If you have just signed up, log in later: then it is sent.")
            raise PageRefused(503, later, retry_after=60) from error
        except NameTaken as error:
            message = _("Somebody else has just taken this user name. Choose another one.")
            link = reverse("account_guest" if request.user.is_authenticated else "account_signup")
            raise PageRefused(409, message, link=link, label=_("Back to the form")) from error
        except RedisError as error:
            outages.failed(LIMITING, error)
            message = _("This is not possible at the moment. Try again in a minute.")
            raise PageRefused(503, message, retry_after=60) from error

    # Refuse PUT: django-allauth would treat it as a POST with an empty form, and raise an error.
    return require_http_methods(["GET", "HEAD", "POST"])(never_cache(page(answer)))


def too_many_requests(request: HttpRequest) -> HttpResponse:
    """Refuse a request that exceeds one of django-allauth's rate limits. django-allauth calls this view.

    Raises:
        PageRefused: always.
    """
    raise PageRefused(429, _("You have done this too often. Try again in a minute."), retry_after=60)


@require_safe
@account_page
@login_required
def account(request: HttpRequest) -> HttpResponse:
    """Show the account, with links to change its password and e-mail address."""
    user = cast("User", request.user)
    if (guest := guests.guest_of(user.pk)) is not None:
        return render(request, "account/guest.html", {"guest": guest, "has_password": user.has_usable_password()})
    emails = EmailAddress.objects.filter(user=user).order_by("-verified", "-pk")
    confirmed = next((each.email for each in emails if each.verified), "")
    waiting = next((each.email for each in emails if not each.verified), "" if confirmed else user.email)
    return render(request, "account/account.html", {"confirmed": confirmed, "waiting": waiting})


@require_http_methods(["GET", "HEAD", "POST"])
@account_page
@login_required
def sign_out(request: HttpRequest) -> HttpResponse:
    """End all sessions of the account, this session included. A GET redirects to the account page."""
    if request.method != "POST":
        return redirect("account")
    sign_out_everywhere([cast("User", request.user).pk])
    logout(request)
    messages.success(request, _("You are logged out on all devices."))
    return redirect("account_login")


def mails_are_printed() -> bool:
    """Return whether mails go into the log of the web server, because `EMAIL_URL` names no mail server."""
    return bool(settings.EMAIL_BACKEND == "django.core.mail.backends.console.EmailBackend")


def _not_now(error: NotNow) -> PageRefused:
    match error:
        case TooManyGuesses():
            minutes = ceil(error.wait / 60)
            message = ngettext(
                "Too many wrong passwords. Try again in %(minutes)d minute, or set a new password.",
                "Too many wrong passwords. Try again in %(minutes)d minutes, or set a new password.",
                minutes,
            ) % {"minutes": minutes}
            link, label = reverse("account_reset_password"), _("Set a new password")
            return PageRefused(429, message, link=link, label=label, retry_after=error.wait)
        case HashingBusy():
            message = _("Too many people are logging in. Try again in a few seconds.")
        case _:
            message = _("Other log-ins to this account or from your network are being checked. Try again in a second.")
    return PageRefused(503, message, retry_after=error.wait)
