"""The URLs below /account/: the views of django-allauth that buyers need, with allauth's names."""

from allauth.account import views
from allauth.account.views import EmailVerificationSentView, PasswordResetDoneView
from django.urls import path, re_path
from django.views.generic import RedirectView

from shop.pages.account import account, account_page, mails_are_printed, sign_out
from shop.pages.guests import email, guest_account

MAILS = {"mails_are_printed": mails_are_printed}

urlpatterns = [
    path("", account, name="account"),
    path("sign-out-everywhere/", sign_out, name="account_sign_out_everywhere"),
    path("guest/", guest_account, name="account_guest"),
    path("login/", account_page(views.login), name="account_login"),
    path("logout/", account_page(views.logout), name="account_logout"),
    path("signup/", account_page(views.signup), name="account_signup"),
    path(
        "confirm/",
        account_page(EmailVerificationSentView.as_view(extra_context=MAILS)),
        name="account_email_verification_sent",
    ),
    path("confirm/<str:key>/", account_page(views.confirm_email), name="account_confirm_email"),
    path("email/", email, name="account_email"),
    path("reauthenticate/", account_page(views.reauthenticate), name="account_reauthenticate"),
    path("password/", account_page(views.password_change), name="account_change_password"),
    # An account that has no password gets a password by the link in a reset mail.
    path(
        "password/set/",
        account_page(RedirectView.as_view(pattern_name="account_reset_password")),
        name="account_set_password",
    ),
    path("password/reset/", account_page(views.password_reset), name="account_reset_password"),
    path(
        "password/reset/sent/",
        account_page(PasswordResetDoneView.as_view(extra_context=MAILS)),
        name="account_reset_password_done",
    ),
    re_path(
        r"^password/reset/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>[^/]+)/$",
        account_page(views.password_reset_from_key),
        name="account_reset_password_from_key",
    ),
    path(
        "password/reset/done/",
        account_page(views.password_reset_from_key_done),
        name="account_reset_password_from_key_done",
    ),
]
