"""The pages of guest checkout: one makes a visitor a guest, the other lets a guest make an account."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import wraps
from typing import cast

from allauth.account import views
from allauth.core import ratelimit
from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME, login
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext as _

from shop.accounts import guests
from shop.accounts.errors import GuestExists
from shop.accounts.forms import GuestAccountForm, GuestForm
from shop.models import Sale
from shop.pages.account import account_page, too_many_requests
from shop.pages.page import PageRefused
from shop.pages.sales import sale_or_404

COOKIE = "guest"
"""Name of the cookie that marks a browser in which a guest was created.

This browser cannot create a second guest, who could buy up to the limit per customer again.
"""

BROWSER = "browser"
"""Name of the cookie with the random id of a browser. The page with the form sets it.

All forms of the browser send this id. So two forms that are sent at the same time make only one guest. With HTTPS, the
name has a prefix, so that other hosts cannot set the cookie.
"""

SaleView = Callable[[HttpRequest, Sale], HttpResponse]


def for_customers(view: SaleView) -> Callable[[HttpRequest, str], HttpResponse]:
    """Decorate a view of a sale that needs a log-in. If the sale allows guests, also offer to buy as a guest."""

    @wraps(view)
    def answer(request: HttpRequest, slug: str) -> HttpResponse:
        sale = sale_or_404(slug)
        if request.user.is_authenticated:
            return view(request, sale)
        way_in = reverse("guest", args=[slug]) if sale.guest_checkout else None
        return redirect_to_login(request.get_full_path(), way_in)

    return answer


def is_guest(request: HttpRequest) -> bool:
    """Return whether the logged-in user is a guest."""
    return guests.guest_of(cast("User", request.user).pk) is not None


def no_guests() -> PageRefused:
    """Return the refusal of a guest's order in a sale without guest checkout."""
    message = _("This sale is not open to guests. Make an account to buy here: your orders stay with you.")
    return PageRefused(403, message, link=reverse("account_guest"), label=_("Make an account"))


@account_page
def guest(request: HttpRequest, slug: str) -> HttpResponse:
    """Let a visitor log in, sign up or buy as a guest. A POST creates the guest and logs this browser in."""
    sale = sale_or_404(slug)
    back = request.POST.get(REDIRECT_FIELD_NAME) or request.GET.get(REDIRECT_FIELD_NAME, "")
    # `redirect` would treat a text without a slash as the name of a URL.
    if not back.startswith("/") or not url_has_allowed_host_and_scheme(back, allowed_hosts=None):
        back = reverse("sale", args=[slug])
    if request.user.is_authenticated:
        return redirect(back)
    if not sale.guest_checkout:
        return redirect_to_login(back)
    form = GuestForm(request.POST or None)
    before = COOKIE in request.COOKIES
    response: HttpResponse
    if request.method == "POST" and not before:
        if not ratelimit.consume(request, action="signup"):
            return too_many_requests(request)
        if form.is_valid():
            browser = request.COOKIES.get(_browser_cookie(), "")
            try:
                login(request, guests.new_guest(form.cleaned_data["email"], browser=browser).user)
            except GuestExists:
                before = True
            else:
                response = redirect(back)
                _set_cookie(response, COOKIE, "1")
                return response
    context = {
        "sale": sale,
        "form": form,
        "before": before,
        "redirect_field_name": REDIRECT_FIELD_NAME,
        "redirect_field_value": back,
        "next": urlencode({REDIRECT_FIELD_NAME: back}),
    }
    status = 409 if before and request.method == "POST" else 200
    response = render(request, "shop/pages/guest.html", context, status=status)
    if _browser_cookie() not in request.COOKIES:
        _set_cookie(response, _browser_cookie(), secrets.token_hex())
    return response


def _browser_cookie() -> str:
    return f"__Host-{BROWSER}" if settings.SESSION_COOKIE_SECURE else BROWSER


def _set_cookie(response: HttpResponse, name: str, value: str) -> None:
    response.set_cookie(
        name,
        value,
        max_age=settings.SESSION_COOKIE_AGE,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


@account_page
def email(request: HttpRequest) -> HttpResponseBase:
    """Show allauth's page that changes the e-mail address. A guest is redirected to the page that makes an account."""
    if request.user.is_authenticated and is_guest(request):
        return redirect("account_guest")
    return views.email(request)


@account_page
@login_required
def guest_account(request: HttpRequest) -> HttpResponse:
    """Show the form in which a guest makes an account. If the form was sent, make the account and send the mail."""
    user = cast("User", request.user)
    mine = guests.guest_of(user.pk)
    if mine is None:
        return redirect("account")
    chosen = user.username if user.has_usable_password() else ""
    form = GuestAccountForm(request.POST or None, user=user, initial={"username": chosen, "email": mine.email})
    if request.method == "POST":
        if not ratelimit.consume(request, action="signup"):
            return too_many_requests(request)
        if form.is_valid():
            data = form.cleaned_data
            guests.make_account(
                request, mine, username=data["username"], email=data["email"], password=data["password1"]
            )
            return redirect("account_email_verification_sent")
    return render(request, "account/guest_account.html", {"form": form, "guest": mine})
