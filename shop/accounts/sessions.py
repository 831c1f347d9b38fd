"""Browser sessions in a table with a column for the account, so that one query ends all sessions of an account."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore

from shop.models import BrowserSession


class SessionStore(DatabaseStore):
    """Django's session store in the database. It also writes the account into a separate column."""

    @classmethod
    def get_model_class(cls) -> type[BrowserSession]:
        return BrowserSession

    def create_model_instance(self, data: dict[str, Any]) -> BrowserSession:
        session: BrowserSession = super().create_model_instance(data)  # type: ignore[assignment]
        account = data.get(SESSION_KEY)
        session.account = None if account is None else int(account)
        return session
