"""Changes to django-allauth: limits on password guesses, and a limit on the threads that send mails."""

from __future__ import annotations

from contextlib import suppress
from smtplib import SMTPException
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import urlencode, urlsplit

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.models import EmailAddress
from allauth.account.stages import EmailVerificationStage
from allauth.account.utils import get_next_redirect_url
from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.db import IntegrityError, connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from inventory.outages import outages
from shop.accounts import guests
from shop.accounts.errors import MailNotSent, NameTaken
from shop.accounts.guesses import address_of, forgive

MAILING = "Sending mails"
"""The work that the log reports as failing while the mail server does not answer."""
LIMITING = "Limiting sign-ups and mails"
"""The work that the log reports as failing while Redis does not answer.

Redis counts each mail before the mail is sent. So the pages that send mails fail while Redis does not answer.
"""

SIGNED_UP_ON = "signed_up_on"
"""Session key for the URL of the page that led a visitor to the sign-up form, such as the page of a sale."""

LINKS = ("activate_url", "password_reset_url", "signup_url")
"""The names of the links in the contexts of django-allauth's mail templates."""

# A mail server may take seconds to answer, and a thread that waits for it cannot take orders. So only a quarter of the
# threads may send mails.
_sending = BoundedSemaphore(max(1, settings.WEB_THREADS // 4))


class AccountAdapter(DefaultAccountAdapter):
    """The shop's adapter for django-allauth, which calls these methods at log-in, at sign-up and to send mails."""

    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "username_password_mismatch": _("The user name or the password is wrong."),
        "email_password_mismatch": _("The e-mail address or the password is wrong, or the address is not confirmed."),
        "enter_current_password": _("This is not your password."),
        "incorrect_password": _("This is not your password."),
        "username_with_at": _("A user name has no @. You can log in with your e-mail address, too."),
    }

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        """Return the user with these credentials, or None.

        A wrong password counts towards the same limits as in the API and the admin. For a log-in by e-mail address, it
        counts for the account that has confirmed this address.

        Raises:
            TooManyGuesses, TriesUnderWay, HashingBusy: the password was not checked.
        """
        name = account_name(credentials.get("username", ""), credentials.get("email", ""))
        user = authenticate(request, username=name, password=credentials["password"])
        return user if isinstance(user, User) else None

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the IP address of the client. allauth limits requests by this address, as the shop limits guesses."""
        return address_of(request)

    def get_login_stages(self) -> list[str]:
        return [f"{__name__}.{ConfirmEmail.__name__}"]

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return reverse("account")

    def clean_username(self, username: str, shallow: bool = False) -> str:  # noqa: FBT001, FBT002 - allauth's
        """Check a new user name. It must not contain an @, so that nobody takes another person's e-mail address."""
        if "@" in username:
            raise self.validation_error("username_with_at")
        return str(super().clean_username(username, shallow))

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:  # noqa: FBT001, FBT002
        """Save a new account.

        Raises:
            NameTaken: somebody else has taken the name since the form was checked.
        """
        try:
            saved: User = super().save_user(request, user, form, commit)
        except IntegrityError as error:
            raise NameTaken from error
        if page := get_next_redirect_url(request):
            request.session[SIGNED_UP_ON] = page
        return saved

    def get_email_verification_redirect_url(self, email_address: EmailAddress) -> str:
        """Return the page to show after an address is confirmed.

        In the browser that signed up, the page is the log-in page, which leads back to the sale.
        """
        page = self.request.session.pop(SIGNED_UP_ON, "")
        if page and not self.request.user.is_authenticated:
            return f"{reverse('account_login')}?{urlencode({'next': page})}"
        return str(super().get_email_verification_redirect_url(email_address))

    def set_password(self, user: User, password: str) -> None:
        """Save a new password, and clear the count of wrong passwords, so that the owner can log in at once."""
        super().set_password(user, password)
        forgive(self.request, user.get_username())

    def send_account_already_exists_mail(self, email: str) -> None:
        """Tell the owner of an e-mail address that somebody has tried to sign up with it.

        Hash a password, as a sign-up does, so that the duration does not reveal that the address has an account.
        """
        make_password("not used")
        super().send_account_already_exists_mail(email)

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Send a mail in the language of the page. Its links lead to `PUBLIC_URL`.

        Raises:
            MailNotSent: the mail server does not accept the mail, or too many threads already wait for that server.
        """
        if not _sending.acquire(blocking=False):
            raise MailNotSent
        try:
            # Return the connection to the pool: orders need it while this thread waits for the mail server.
            if not connection.in_atomic_block:
                connection.close()
            super().send_mail(template_prefix, email, with_links(context, self.origin()))
        except (SMTPException, OSError) as error:
            outages.failed(MAILING, error)
            raise MailNotSent from error
        finally:
            _sending.release()
        outages.worked(MAILING)
        outages.worked(LIMITING)

    def origin(self) -> str:
        """Return the scheme and host of links in mails: `PUBLIC_URL`, or the host of the request if that is not set.

        The host of a request can be forged. So without `PUBLIC_URL`, an attacker could make the shop send a reset mail
        whose link leads to the attacker's host.
        """
        return settings.PUBLIC_URL or f"{self.request.scheme}://{self.request.get_host()}"

    def send_notification_mail(self, template_prefix: str, user: User, context: Any = None, email: Any = None) -> None:
        """Send a mail about a change of an account to its owner. If the mail cannot be sent, the change stays."""
        with suppress(MailNotSent):
            super().send_notification_mail(template_prefix, user, context, email)


class ConfirmEmail(EmailVerificationStage):
    """The step of a log-in that requires a confirmed e-mail address.

    An account that an operator made without an address skips this step. A guest who set a password must confirm their
    address. After that, they are an ordinary customer.
    """

    def handle(self) -> tuple[HttpResponse | None, bool]:
        user = self.login.user
        if user is not None and (guest := guests.guest_of(user.pk)) is not None:
            guests.ask_to_confirm(self.request, guest)
            return redirect("account_email_verification_sent"), True
        if user is not None and not user.email and not EmailAddress.objects.filter(user=user).exists():
            return None, True
        response: tuple[HttpResponse | None, bool] = super().handle()
        return response


def with_links(context: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the context of a mail template with a new origin in all links, and the origin itself as `origin`.

    Args:
        origin: scheme and host of the links, such as `https://shop.example`.
    """
    links = {name: urlsplit(context[name])._replace(scheme="", netloc="").geturl() for name in LINKS if name in context}
    return {**context, "origin": origin, **{name: f"{origin}{link}" for name, link in links.items()}}


def account_name(username: str, email: str) -> str:
    """Return the user name for a log-in with a user name, or with a confirmed e-mail address.

    Args:
        username: the typed text.
        email: the typed text if it is an e-mail address; else empty.
    """
    if not email or User.objects.filter(username=username).exists():
        return username
    confirmed = EmailAddress.objects.filter(email=email.lower(), verified=True)
    return confirmed.values_list("user__username", flat=True).first() or username
