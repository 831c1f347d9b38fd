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
"""Valid tokens that a process remembers, about 2 kB each. A buyer sends theirs with each request of a sale."""


@lru_cache(TOKENS)
def _verified(raw_token: bytes) -> AccessToken:
    """Return a token whose signature and claims were checked. Errors are not remembered, so nobody can fill the cache.

    Raises:
        TokenError: the token is not valid.
    """
    return AccessToken(raw_token)  # type: ignore[arg-type]


class TokenAuthentication(JWTStatelessUserAuthentication):
    """`Authorization: Bearer` with an access token. Reading it costs no query."""

    def get_raw_token(self, header: bytes) -> bytes | None:
        scheme, *token = header.split() or [b""]
        if scheme != b"Bearer" or len(token) != 1:
            raise AuthenticationFailed("The Authorization header is not `Bearer` and one token.")
        return token[0]

    def get_validated_token(self, raw_token: bytes) -> Any:
        try:
            token = _verified(raw_token)
            # All other claims stay true. A token that has expired since it was remembered is checked as a new one.
            return token if time.time() < token["exp"] else AccessToken(raw_token)  # type: ignore[arg-type]
        except TokenError as error:
            raise AuthenticationFailed(str(error)) from error


class TokenScheme(SimpleJWTScheme):
    """The description of the token in the schema. drf-spectacular finds this class by its base."""

    target_class = "shop.api.authentication.TokenAuthentication"
