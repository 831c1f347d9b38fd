"""The exception of this package."""


class ServerError(Exception):
    """A server or its run folder cannot be used. The message says why and, in most cases, what to do next."""
