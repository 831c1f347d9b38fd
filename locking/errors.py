"""Errors of the locking package. Every message says what happened, and most messages say what to do next."""


class LockError(Exception):
    """Base class of every error of this package."""


class LockTimeout(LockError):
    """The lock was not granted in time because another holder has it. Nothing was changed; try again later."""


class LeaseLost(LockError):
    """The lease is no longer guaranteed. Stop writing, and abandon or undo the work under the lock."""


class NotOwner(LockError):
    """The lease cannot be used here: it was already released, or it belongs to the parent of a forked process."""


class LockUnavailable(LockError):
    """The server or file of the lock could not be reached, did not answer in time, or refused the request. Try again.

    The state of the lock may be unknown: a request without an answer can still take effect.
    """
