"""The view that gives the script of a page an access token for the API."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from shop.accounts import tokens
from shop.api.exception_handler import handle_exception
from shop.pages import login_hint

NO_STORE = {"Cache-Control": "no-store"}
"""Response headers that forbid caching, because a token belongs to one customer."""


@require_safe
def token(request: HttpRequest) -> HttpResponse:
    """Respond with an access token and the id of the logged-in user, and with whether this user is a guest.

    Token and id are null if nobody is logged in. The response contains no refresh token, because the browser gets its
    next access token with the session cookie.
    """
    try:
        user = request.user
        if not isinstance(user, User) or not user.is_authenticated:
            nobody = {"access": None, "expires_in": 0, "customer": None, "guest": False}
            response = JsonResponse(nobody, headers=NO_STORE)
            login_hint.update(request, response, None)  # The session has ended: keep scripts from asking again.
            return response
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
    response = JsonResponse(answer, headers=NO_STORE)
    login_hint.update(request, response, user.pk)
    return response
