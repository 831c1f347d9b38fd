"""Sessions of browsers, in a table that knows their accounts: ending those of one account reads no other."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore

from shop.models import BrowserSession


class SessionStore(DatabaseStore):
    """Django's sessions in the database, with the account in a column of its own."""

    @classmethod
    def get_model_class(cls) -> type[BrowserSession]:
        return BrowserSession

    def create_model_instance(self, data: dict[str, Any]) -> BrowserSession:
        session: BrowserSession = super().create_model_instance(data)  # type: ignore[assignment]
        account = data.get(SESSION_KEY)
        session.account = None if account is None else int(account)
        return session
