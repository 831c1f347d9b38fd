"""The state of a server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """A server's state at one moment. `version` is None when it does not answer, `pid` when it is unknown."""

    name: str
    address: str
    version: str | None = None
    pid: int | None = None

    @property
    def up(self) -> bool:
        """Whether the server answers."""
        return self.version is not None
