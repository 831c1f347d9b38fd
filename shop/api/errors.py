"""Errors that only the API raises: a refused body, log-in or Idempotency-Key header."""

from __future__ import annotations

from rest_framework import exceptions


class BodyTooLarge(exceptions.APIException):
    """The body is larger than `MAX_BODY`."""

    status_code = 413
    default_detail = "The body is too large."


class LengthRequired(exceptions.APIException):
    """The body is chunked, and WSGI does not pass on chunked bodies."""

    status_code = 411


class WrongCredentials(exceptions.AuthenticationFailed):
    """There is no active account with this name and password."""


class BadKey(exceptions.APIException):
    """The Idempotency-Key header is missing or malformed."""

    status_code = 400
