"""Why a password is not checked now, or an account cannot be made as wanted."""

from __future__ import annotations


class NotNow(Exception):
    """No password was checked. Try again after `wait` seconds."""

    def __init__(self, message: str, *, wait: int) -> None:
        super().__init__(message)
        self.wait = wait


class TooManyGuesses(NotNow):
    """The account, or the caller's address, has reached its limit of wrong passwords."""

    def __init__(self, wait: int) -> None:
        super().__init__(f"Too many wrong passwords. Try again in {wait} seconds.", wait=wait)


class HashingBusy(NotNow):
    """Too many passwords wait to be checked in this process, or this one has waited too long."""

    def __init__(self) -> None:
        super().__init__("Too many people log in at once. Try again in a moment.", wait=1)


class TriesUnderWay(NotNow):
    """Passwords that are being checked use up the rest of a limit: of the account, or of the caller's address."""

    def __init__(self) -> None:
        super().__init__("Other log-ins to this account or from this address are being checked. Try again.", wait=1)


class MailNotSent(Exception):
    """The mail server does not take a mail, or enough threads of this process wait for it already."""


class NameTaken(Exception):
    """Somebody else has signed up with the same user name at the same moment."""
