"""Errors of accounts, such as a password that cannot be checked now, or a user name that is taken."""

from __future__ import annotations


class NotNow(Exception):
    """The password was not checked. The caller may try again after `wait` seconds."""

    def __init__(self, message: str, *, wait: int) -> None:
        super().__init__(message)
        self.wait = wait


class TooManyGuesses(NotNow):
    """The account, or the caller's IP address, has reached its limit of wrong passwords."""

    def __init__(self, wait: int) -> None:
        super().__init__(f"Too many wrong passwords. Try again in {wait} seconds.", wait=wait)


class HashingBusy(NotNow):
    """Too many threads of this process wait to hash a password, or this thread has waited too long."""

    def __init__(self) -> None:
        super().__init__("Too many people log in at once. Try again in a moment.", wait=1)


class TriesUnderWay(NotNow):
    """Checks of other passwords are running, and use up the limit of the account or IP address. Try again in 1 s."""

    def __init__(self) -> None:
        super().__init__("Other log-ins to this account or from this address are being checked. Try again.", wait=1)


class AddressNotConfirmed(Exception):
    """The account was created by a sign-up, and its e-mail address is not confirmed yet."""


class MailNotSent(Exception):
    """The mail server does not accept a mail, or too many threads of this process already wait for that server."""


class NameTaken(Exception):
    """Somebody else has taken the user name since the form was checked."""


class GuestExists(Exception):
    """This browser already has a guest, and may not create a second one."""
