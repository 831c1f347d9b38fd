"""Replace names in modules while experiments run, for example a class by a subclass that stops at each step."""

from __future__ import annotations

import threading
from typing import Any

_mutex = threading.Lock()


class StandIns:
    """Replaces names in modules while at least one user needs the replacements.

    Args:
        places: triples of a module, a name in it, and the object that replaces the original of that name.
    """

    def __init__(self, *places: tuple[Any, str, Any]) -> None:
        self._places = [(module, name, getattr(module, name), instead) for module, name, instead in places]
        self._users: set[object] = set()

    def enter(self, user: object) -> None:
        """Replace the names until `leave` is called with the same `user`."""
        with _mutex:
            self._users.add(user)
            for module, name, _, instead in self._places:
                setattr(module, name, instead)

    def leave(self, user: object) -> None:
        """Put the originals back if no other user is left. Safe to call more than once."""
        with _mutex:
            self._users.discard(user)
            if not self._users:
                for module, name, before, _ in self._places:
                    setattr(module, name, before)
