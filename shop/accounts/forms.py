"""The forms of django-allauth, in the words of the shop, and with its guard of passwords."""

from __future__ import annotations

from typing import Any

from allauth.account import forms
from allauth.account.adapter import get_adapter
from django import forms as django_forms
from django.contrib.auth.models import User
from django.utils.translation import gettext_lazy as _

LABELS = {
    "login": _("User name or e-mail address"),
    "username": _("User name"),
    "email": _("E-mail address"),
    "password": _("Password"),
    "oldpassword": _("Present password"),
    "password1": _("New password"),
    "password2": _("New password, once more"),
}


class Labelled:
    """A form whose fields have the labels above."""

    fields: dict[str, Any]

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        for name, field in self.fields.items():
            field.label = LABELS[name]


class LoginForm(Labelled, forms.LoginForm):
    """Log-in with user name or e-mail address."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.fields["login"].widget.attrs["autocomplete"] = "username"


class SignupForm(Labelled, forms.SignupForm):
    """A new account."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.fields["password1"].label = LABELS["password"]


class GuestForm(Labelled, django_forms.Form):
    """The address of a guest."""

    email = django_forms.EmailField(
        max_length=254,
        widget=django_forms.EmailInput({"autocomplete": "email"}),
        help_text=_("It is shown on your receipt, and the shop can reach you there. No mail is sent to it now."),
    )


class GuestAccountForm(SignupForm):
    """The account that a guest makes of theirs.

    Args:
        user: the user of the guest.
    """

    def __init__(self, *args: Any, user: User, **values: Any) -> None:
        self.user = user
        super().__init__(*args, **values)

    def clean_username(self) -> str:
        """Check the name, unless they have chosen it before."""
        name = str(self.cleaned_data["username"])
        return name if name == self.user.username else str(super().clean_username())

    def validate_unique_email(self, value: str) -> str:
        """Accept any address. Only a mail to it tells whether it has an account."""
        return value


class AddEmailForm(Labelled, forms.AddEmailForm):
    """Another address."""


class ReauthenticateForm(Labelled, forms.ReauthenticateForm):
    """The password, once more."""


class ResetPasswordForm(Labelled, forms.ResetPasswordForm):
    """Where to send the link that resets a password."""


class ResetPasswordKeyForm(Labelled, forms.ResetPasswordKeyForm):
    """A new password, by that link."""


class ChangePasswordForm(Labelled, forms.ChangePasswordForm):
    """A new password. A wrong old one is a guess, as at the log-in: allauth alone would compare it without limit."""

    def clean_oldpassword(self) -> str:
        """Check the old password.

        Raises:
            TooManyGuesses, TriesUnderWay, HashingBusy: it was not checked.
        """
        old = str(self.cleaned_data["oldpassword"])
        if not get_adapter().reauthenticate(self.user, old):
            raise get_adapter().validation_error("enter_current_password")
        return old
