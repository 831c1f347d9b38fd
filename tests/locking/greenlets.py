"""A program in which twenty greenlets add one under a lock, separate because gevent patches the whole process.

With the argument `late`, gevent patches the process after `locking` was imported.
"""

import sys

if "late" in sys.argv:
    import locking.postgres  # noqa: F401

from gevent import monkey

monkey.patch_all()

import pickle  # noqa: E402

import gevent  # noqa: E402


def main() -> None:
    recipe, name, options = pickle.load(sys.stdin.buffer)  # noqa: S301 - what the test has just written
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
    main()
