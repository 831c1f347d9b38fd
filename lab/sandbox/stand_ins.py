"""Classes that stop at each step, in the place of those of a module, for as long as any trial runs."""

from __future__ import annotations

import threading
from typing import Any

_mutex = threading.Lock()


class StandIns:
    """What a module looks up by name is another while anybody uses this.

    Args:
        places: the module, the name, and what stands in for what has that name.
    """

    def __init__(self, *places: tuple[Any, str, Any]) -> None:
        self._places = [(module, name, getattr(module, name), instead) for module, name, instead in places]
        self._users: set[object] = set()

    def enter(self, user: object) -> None:
        """From now on they stand in."""
        with _mutex:
            self._users.add(user)
            for module, name, _, instead in self._places:
                setattr(module, name, instead)

    def leave(self, user: object) -> None:
        """As long as nobody else uses them, all is as it was. It may be called more than once."""
        with _mutex:
            self._users.discard(user)
            if not self._users:
                for module, name, before, _ in self._places:
                    setattr(module, name, before)
