"""What is found when a server is asked how it is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """One server as it is found now; `version` and `pid` are None when it does not answer."""

    name: str
    address: str
    version: str | None = None
    pid: int | None = None

    @property
    def up(self) -> bool:
        """Whether it answers."""
        return self.version is not None
