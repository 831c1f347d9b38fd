"""Errors of the waiting room, for its callers."""


class NotAdmitted(Exception):
    """The sale has a waiting room, and the order has no valid ticket. Nothing was sold."""


class RoomUnavailable(Exception):
    """Redis, which stores the places, does not answer or refuses writes. The customer may have a place now.

    They can safely try again.
    """


class RoomFull(RoomUnavailable):
    """Redis has no memory for another place. Nobody loses a place; the customer can try again when there is memory."""
