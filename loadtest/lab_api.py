"""Client for the lab's endpoints. The lab keeps the stock of its flawed ways of selling (rungs) in its own tables."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from loadtest.tokens import access_token


class LabError(Exception):
    """The lab did not carry out a request."""


def call_lab(host: str, method: str, path: str, customer: int, body: Any = None) -> Any:
    """Send a request to the lab as a staff user, and return the parsed response.

    Raises:
        LabError: there was no response, or its status was not a success.
    """
    request = urllib.request.Request(  # noqa: S310 - the host is the load test's own target
        host.rstrip("/") + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {access_token(customer, staff=True)}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            return json.load(response)
    except urllib.error.HTTPError as error:
        hint = " Is LAB_ENABLED set where the shop runs?" if error.code == 404 else ""
        raise LabError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:200]}{hint}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: no JSON; HTTPException: cut off
        raise LabError(f"{host} does not answer: {error}") from error
