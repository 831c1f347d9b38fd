"""The cookie that tells the scripts of cached pages whether this browser has a log-in.

The page of a sale is the same for everybody, so it does not say whether a customer is logged in. The script of the page
reads this cookie: it requests a token only if a customer is logged in, and notices when another customer logs in. So
people who watch a sale without a log-in send the web servers no token requests.

The cookie is a hint: scripts may read and change it, and the server never trusts it.
"""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.crypto import salted_hmac

COOKIE = "login"
"""Name of the cookie, which `visit.js` reads."""
MAX_AGE = 365 * 24 * 3600
"""Seconds for which a browser keeps the cookie.

If the session ends earlier, the next token request deletes the cookie.
"""


def value_for(customer: int | str) -> str:
    """Return the value of the cookie for a customer. It does not reveal their id."""
    return salted_hmac(__name__, str(customer)).hexdigest()[:12]


def update(request: HttpRequest, response: HttpResponseBase, customer: int | str | None) -> None:
    """Set the cookie for a customer, or delete it if nobody is logged in. Do nothing if the cookie is already right.

    Args:
        customer: id of the logged-in user; None if nobody is logged in.
    """
    value = "" if customer is None else value_for(customer)
    if request.COOKIES.get(COOKIE, "") == value:
        return
    if not value:
        response.delete_cookie(COOKIE, samesite="Lax")
        return
    secure = settings.SESSION_COOKIE_SECURE
    response.set_cookie(COOKIE, value, max_age=MAX_AGE, secure=secure, httponly=False, samesite="Lax")
