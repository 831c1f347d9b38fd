"""Access and refresh tokens: checked strictly, and ended by a new password, a closed account or a sign-out.

A token contains the session of its account: a digest of the password hash and of the number of times that the account
has signed out everywhere. When one of these changes, the session changes, and older tokens are no longer valid. Most
requests query the account, and compare its present session with the session in the token. Orders and the waiting room
skip this query to be fast: there, an access token stays valid for `ACCESS_TOKEN_TTL` seconds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from typing import Any, cast

import jwt
from allauth.account.models import EmailAddress
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F
from django.utils.crypto import constant_time_compare, salted_hmac
from rest_framework_simplejwt import tokens
from rest_framework_simplejwt.backends import TokenBackend
from rest_framework_simplejwt.exceptions import TokenError
from rest_framework_simplejwt.settings import api_settings

from shop.accounts.errors import AddressNotConfirmed
from shop.accounts.guests import IS_GUEST
from shop.models import BrowserSession, SignOut

SESSION = "session"
"""Name of the claim with the session of the account. Tokens of another issuer may have no such claim."""
GUEST = "guest"
"""Name of the claim in tokens of guests. Other tokens do not have it."""
LAST_MOMENT = 253_402_300_799
"""The end of the year 9999 in seconds since 1970."""
LAST_USER = 2**31 - 1
LONGEST = 255
USER_ID = re.compile(r"[1-9][0-9]{0,9}")
SIGNATURE_ONLY = {
    **dict.fromkeys(("verify_exp", "verify_iat", "verify_nbf", "verify_aud", "verify_iss"), False),
    **dict.fromkeys(("verify_sub", "verify_jti"), False),
}


class StrictBackend(TokenBackend):
    """Checks the signature of a token, and then its claims with `checked`."""

    def decode(self, token: Any, verify: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - the name is simplejwt's
        try:
            claims = jwt.decode(token, self.get_verifying_key(token), [self.algorithm], options=SIGNATURE_ONLY)  # type: ignore[arg-type]
        # RecursionError is possible, because the header is parsed before the signature is checked: anybody can send a
        # token whose header consists of nested lists.
        except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError) as error:
            raise TokenError("The token is malformed or not signed by this shop.") from error
        return checked(claims)


def checked(claims: dict[str, Any]) -> dict[str, Any]:
    """Check the type and the range of each claim of a signed token, and return the claims.

    simplejwt checks afterwards that the token has not expired and is of the right type.

    Raises:
        TokenError: a claim has the wrong type or is out of range, or the token is not valid yet.
    """
    for name in ("exp", "iat", "nbf"):
        if name in claims and not (type(claims[name]) is int and 0 <= claims[name] <= LAST_MOMENT):
            raise TokenError(f"The claim {name} of the token is not a time in seconds since 1970.")
    for name in ("jti", SESSION):
        if name in claims and not (isinstance(claims[name], str) and 0 < len(claims[name]) <= LONGEST):
            raise TokenError(f"The claim {name} of the token is not a text of 1 to {LONGEST} characters.")
    for name in ("is_staff", "is_superuser", GUEST):
        if type(claims.get(name, False)) is not bool:
            raise TokenError(f"The claim {name} of the token is neither true nor false.")
    user = claims.get("user_id")
    if type(user) not in (int, str) or not USER_ID.fullmatch(str(user)) or int(str(user)) > LAST_USER:
        raise TokenError("The claim user_id of the token is not the id of an account.")
    if claims.get("nbf", 0) > time.time():
        raise TokenError("The token is not valid yet.")
    return {**claims, "user_id": str(user)}


BACKEND = StrictBackend(api_settings.ALGORITHM, api_settings.SIGNING_KEY)


class AccessToken(tokens.AccessToken):
    """A token that authenticates requests."""

    _token_backend = BACKEND


class RefreshToken(tokens.RefreshToken):
    """A token that is exchanged for new access tokens."""

    _token_backend = BACKEND
    access_token_class = AccessToken


def issue(user: User) -> dict[str, str]:
    """Return new refresh and access tokens for a user. Call it after the user has logged in with their password.

    Raises:
        AddressNotConfirmed: the user has signed up and has not confirmed an e-mail address. An account that an operator
            made has no address to confirm.
    """
    confirmed = EmailAddress.objects.filter(user=user).values_list("verified", flat=True)
    if confirmed and not any(confirmed):
        raise AddressNotConfirmed
    token = new_token(user)
    return {"refresh": str(token), "access": str(token.access_token)}


def new_token(user: User) -> RefreshToken:
    """Return a new refresh token for a logged-in user. Access tokens that are made from it have the same claims."""
    token = cast("RefreshToken", RefreshToken.for_user(user))
    sign_outs, guest = User.objects.values_list("signout__times", IS_GUEST).get(pk=user.pk)
    token[SESSION] = _session(user.password, sign_outs)
    if guest:
        token[GUEST] = True
    return token


def refresh(text: str) -> dict[str, str]:
    """Return a new access token for a refresh token.

    Raises:
        TokenError: the token is not valid, or its session has ended.
    """
    token = RefreshToken(text)  # type: ignore[arg-type]
    require_session(int(token["user_id"]), token.get(SESSION, ""))
    return {"access": str(token.access_token)}


def require_session(user: int, session: str | None) -> None:
    """Check that an account is open, and that the session of its token has not ended.

    Args:
        session: the session in the token; None to check only that the account is open.

    Raises:
        TokenError: the account is closed, or the session has ended.
    """
    active = get_user_model().objects.filter(pk=user, is_active=True)
    account = active.values_list("password", "signout__times").first()
    if account is None:
        raise TokenError("The account of this token is closed.")
    if session is not None and not constant_time_compare(session, _session(*account)):
        raise TokenError("The password has changed, or the account has signed out everywhere. Log in again.")


def sign_out_everywhere(users: Collection[int]) -> None:
    """End all refresh tokens and browser sessions of some accounts.

    Until an access token expires, it can still place orders and enter waiting rooms.
    """
    with transaction.atomic():
        SignOut.objects.bulk_create([SignOut(user_id=user) for user in users], ignore_conflicts=True)
        SignOut.objects.filter(user__in=users).update(times=F("times") + 1)
        BrowserSession.objects.filter(account__in=users).delete()


def _session(password: str, sign_outs: int | None) -> str:
    return salted_hmac("shop.accounts.tokens", f"{sign_outs or 0}${password}", algorithm="sha256").hexdigest()[:32]
