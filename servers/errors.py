"""What goes wrong with servers, in one word."""


class ServerError(Exception):
    """A server or its run folder cannot be used; the message says why and what to do next."""
