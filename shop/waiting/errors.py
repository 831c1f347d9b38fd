"""Errors of the waiting room, for its callers."""


class NotAdmitted(Exception):
    """The sale has a waiting room, and the order came without a valid ticket. Nothing was sold."""


class RoomUnavailable(Exception):
    """Redis, which keeps the places, does not answer. The customer may have got a place: it is safe to ask again."""
