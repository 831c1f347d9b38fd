"""The state of a server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """A server's state at one moment.

    Args:
        version: version of the server; None if it does not respond.
        pid: process id; None if unknown.
        wrong: why the server cannot be used as it is, and what to do; empty if nothing is wrong.
    """

    name: str
    address: str
    version: str | None = None
    pid: int | None = None
    wrong: str = ""

    @property
    def up(self) -> bool:
        """Whether the server responds."""
        return self.version is not None
