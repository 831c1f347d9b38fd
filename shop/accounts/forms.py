"""The forms of django-allauth with the shop's labels and its limit on password guesses."""

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
    """Mixin for forms: gives the fields the labels in `LABELS`."""

    fields: dict[str, Any]

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        for name, field in self.fields.items():
            field.label = LABELS[name]


class LoginForm(Labelled, forms.LoginForm):
    """The form for a log-in with user name or e-mail address."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.fields["login"].widget.attrs["autocomplete"] = "username"


class SignupForm(Labelled, forms.SignupForm):
    """The form that makes a new account."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.fields["password1"].label = LABELS["password"]


class GuestForm(Labelled, django_forms.Form):
    """The form with the e-mail address of a guest."""

    email = django_forms.EmailField(
        max_length=254,
        widget=django_forms.EmailInput({"autocomplete": "email"}),
        help_text=_("It is shown on your receipt, and the shop can reach you there. No mail is sent to it now."),
    )


class GuestAccountForm(SignupForm):
    """The form with which a guest makes an account.

    Args:
        user: the user of the guest.
    """

    def __init__(self, *args: Any, user: User, **values: Any) -> None:
        self.user = user
        super().__init__(*args, **values)

    def clean_username(self) -> str:
        """Check the user name. If the guest has chosen it before, it is accepted without a check."""
        name = str(self.cleaned_data["username"])
        return name if name == self.user.username else str(super().clean_username())

    def validate_unique_email(self, value: str) -> str:
        """Accept any e-mail address. Only a mail to the address reveals whether an account already has it."""
        return value


class AddEmailForm(Labelled, forms.AddEmailForm):
    """The form that changes the e-mail address of an account."""


class ReauthenticateForm(Labelled, forms.ReauthenticateForm):
    """The form that asks for the password again before a sensitive change."""


class ResetPasswordForm(Labelled, forms.ResetPasswordForm):
    """The form that sends the link for a new password to an e-mail address."""


class ResetPasswordKeyForm(Labelled, forms.ResetPasswordKeyForm):
    """The form for a new password, which the link in the reset mail opens."""


class ChangePasswordForm(Labelled, forms.ChangePasswordForm):
    """The form that changes the password. A wrong old password counts as a guess, which allauth itself does not do."""

    def clean_oldpassword(self) -> str:
        """Check the old password.

        Raises:
            TooManyGuesses, TriesUnderWay, HashingBusy: the old password was not checked.
        """
        old = str(self.cleaned_data["oldpassword"])
        if not get_adapter().reauthenticate(self.user, old):
            raise get_adapter().validation_error("enter_current_password")
        return old
