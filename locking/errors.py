"""What can go wrong with a lock, in the caller's words: each message says what to do next."""


class LockError(Exception):
    """The root of every error of this package."""


class LockTimeout(LockError):
    """The lock was not granted in time: somebody else holds it. Nothing was changed; try again later."""


class LeaseLost(LockError):
    """The lease is no longer surely ours. Stop, write nothing more, and undo or abandon what was begun."""


class NotOwner(LockError):
    """This lease may not be used here: it was released before, or it belongs to the parent of a forked process."""


class LockUnavailable(LockError):
    """The server of the lock cannot be reached or did not answer. Nobody knows whether it is free; try again."""
