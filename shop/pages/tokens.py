"""An access token for the script of a page: it orders through the API, as any client does."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from shop.accounts import tokens
from shop.api.exception_handler import handle_exception

NO_STORE = {"Cache-Control": "no-store"}
"""A token is for one customer and must not be kept by any cache."""


@require_safe
def token(request: HttpRequest) -> HttpResponse:
    """Return an access token of the account that has logged in on this browser, its id, and whether it is a guest's.

    Without a log-in token and id are null: for a page that anyone may open this is no error. The refresh token is not
    sent: the browser gets its next access token with the session cookie.
    """
    try:
        user = request.user
        if not isinstance(user, User) or not user.is_authenticated:
            nobody = {"access": None, "expires_in": 0, "customer": None, "guest": False}
            return JsonResponse(nobody, headers=NO_STORE)
        access = tokens.new_token(user).access_token
    except DatabaseError as error:
        problem = handle_exception(error, {"request": request})
        if problem is None:
            raise
        return problem
    answer = {
        "access": str(access),
        "expires_in": settings.ACCESS_TOKEN_TTL,
        "customer": user.pk,
        "guest": bool(access.get(tokens.GUEST, False)),
    }
    return JsonResponse(answer, headers=NO_STORE)
