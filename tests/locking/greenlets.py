"""A program in which twenty greenlets add one under a lock, separate because gevent patches the whole process.

The program patches its process before it imports `locking`. A process that has imported `locking` before the patch
calls `add_in_greenlets`.
"""

import pickle
import sys
from typing import Any


def add_in_greenlets(recipe: Any, name: str, options: dict[str, Any], *_: Any) -> None:
    """Let gevent patch the process, then let each greenlet hold the lock once."""
    from gevent import monkey

    monkey.patch_all()

    import gevent

    cell = recipe.cell(name)
    tokens = []

    def add() -> None:
        with recipe(name, **options).hold() as lease:
            tokens.append(lease.token)
            value = cell.read()
            gevent.sleep(0)
            cell.write(value + 1)

    gevent.joinall([gevent.spawn(add) for _ in range(20)], raise_error=True)
    assert len(set(tokens)) == 20, "two greenlets held the same lease"


if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()
    add_in_greenlets(*pickle.load(sys.stdin.buffer))  # noqa: S301 - what the test has just written
