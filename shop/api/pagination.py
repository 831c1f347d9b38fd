"""Pagination of lists that grow while they are read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request


class NewestFirst(CursorPagination):
    """Pages in descending order of ids. Order ids are UUIDv7, which grow with time."""

    ordering = "-id"
    page_size = 50
    invalid_cursor_message = "The cursor is not one of this list. Start at its first page."

    def decode_cursor(self, request: Request) -> Any:
        cursor = super().decode_cursor(request)
        if cursor is not None and cursor.position is not None:
            try:
                UUID(str(cursor.position))
            except ValueError as error:
                raise NotFound(self.invalid_cursor_message) from error
        return cursor
