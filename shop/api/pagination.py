"""Pages of a growing list."""

from rest_framework.pagination import CursorPagination


class NewestFirst(CursorPagination):
    """By id: an order's id is a UUIDv7, which grows with time."""

    ordering = "-id"
    page_size = 50
