"""Authentication of the REST API by access tokens."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

from drf_spectacular.contrib.rest_framework_simplejwt import SimpleJWTScheme
from rest_framework.exceptions import AuthenticationFailed
from rest_framework_simplejwt.authentication import JWTStatelessUserAuthentication
from rest_framework_simplejwt.exceptions import TokenError

from shop.accounts.tokens import AccessToken

TOKENS = 10_000
"""Maximum number of checked tokens in a process's cache, about 2 kB each. A buyer sends the same token many times."""


@lru_cache(TOKENS)
def _verified(raw_token: bytes) -> AccessToken:
    """Check the signature and the claims of a token, and return it. Only valid tokens are cached.

    Raises:
        TokenError: the token is not valid.
    """
    return AccessToken(raw_token)  # type: ignore[arg-type]


class TokenAuthentication(JWTStatelessUserAuthentication):
    """Authenticates requests by the header `Authorization: Bearer` and an access token, without a query."""

    def get_raw_token(self, header: bytes) -> bytes | None:
        scheme, *token = header.split() or [b""]
        if scheme != b"Bearer" or len(token) != 1:
            raise AuthenticationFailed("The Authorization header is not `Bearer` and one token.")
        return token[0]

    def get_validated_token(self, raw_token: bytes) -> Any:
        try:
            token = _verified(raw_token)
            # A cached token was valid when it was cached, but may have expired since. If so, parse it again, because
            # parsing an expired token raises the error.
            return token if time.time() < token["exp"] else AccessToken(raw_token)  # type: ignore[arg-type]
        except TokenError as error:
            raise AuthenticationFailed(str(error)) from error


class TokenScheme(SimpleJWTScheme):
    """Describes the token in the OpenAPI schema. drf-spectacular finds this class by its base class."""

    target_class = "shop.api.authentication.TokenAuthentication"
