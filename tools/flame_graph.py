"""Draw a flame graph of a web process during a burst, as an SVG picture.

    py-spy record --gil --format raw --rate 200 --duration 15 --output order.raw --pid <web process>
    python tools/flame_graph.py order.raw docs/images/order-after.svg

A box is a function, and the width of the box is the function's share of the samples. The box stands on the box of the
calling function. Blue is this project, orange is Django and REST framework, and grey is other code. Only functions that
answer a request are drawn, without boxes that are narrower than `NARROWEST`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, ROW, LETTER = 1200, 16, 6.3
"""Width of the picture, height of a box and width of a letter, in pixels."""
NARROWEST = 0.004
"""Smallest share of the samples for which a box is drawn."""
FIRST = "Application.__call__ "
"""Beginning of the name of the frame that answers a request. This frame is the lowest box."""
FRAME = re.compile(r"(?P<name>.+) \((?P<file>[^:]+)(?::\d+)?\)")
COLOURS = {**dict.fromkeys(("shop/", "inventory/"), "#9ec5f4"), "django/": "#f6c28b", "rest_framework": "#f6c28b"}
OTHERS = "#d9d9d9"


@dataclass
class Box:
    """A function, and the samples in which it, or a function that it called, was running."""

    frame: str = ""
    samples: int = 0
    called: dict[str, Box] = field(default_factory=dict)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)  # noqa: T201
        return 2
    recorded, picture = map(Path, arguments)
    picture.write_text(draw(recorded.read_text()), encoding="utf-8")
    return 0


def draw(recorded: str) -> str:
    """Return the flame graph as the text of an SVG picture.

    Args:
        recorded: output of py-spy: one line per stack, with the stack's number of samples at the end.
    """
    root = Box()
    for line in recorded.splitlines():
        stack, _, samples = line.rpartition(" ")
        frames = [re.sub(r":\d+\)$", ")", frame) for frame in stack.split(";")]
        first = next((at for at, frame in enumerate(frames) if frame.startswith(FIRST)), None)
        if first is not None:
            _add(root, frames[first:], int(samples))
    (request,) = root.called.values()
    boxes = list(_boxes(request, 0, 0.0, 1 / request.samples))
    height = ROW * (1 + max(level for level, *_ in boxes))
    drawn = "\n".join(_drawn(*box, height) for box in boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" '
        f'font-size="10.5">\n{drawn}\n</svg>\n'
    )


def _add(box: Box, frames: list[str], samples: int) -> None:
    box.samples += samples
    if frames:
        _add(box.called.setdefault(frames[0], Box(frames[0])), frames[1:], samples)


def _boxes(box: Box, level: int, left: float, share: float) -> Iterator[tuple[int, float, float, str]]:
    """Yield each box that is wide enough, as (level, left edge, width, frame).

    Left edge and width are shares of the width of the picture.
    """
    width = box.samples * share
    if width < NARROWEST:
        return
    yield level, left, width, box.frame
    for called in sorted(box.called.values(), key=lambda called: -called.samples):
        yield from _boxes(called, level + 1, left, share)
        left += called.samples * share


def _drawn(level: int, left: float, width: float, frame: str, height: int) -> str:
    x, y, wide = left * WIDTH, height - ROW * (level + 1), width * WIDTH
    name = frame.partition(" (")[0].replace("<locals>.", "")
    text = name[: max(0, int((wide - 4) / LETTER))]
    colour = next((colour for folder, colour in COLOURS.items() if _file(frame).startswith(folder)), OTHERS)
    return (
        f'<g><title>{escape(frame)}: {width:.1%}</title><rect x="{x:.1f}" y="{y}" width="{wide:.1f}" '
        f'height="{ROW - 1}" fill="{colour}"/>'
        + (f'<text x="{x + 2:.1f}" y="{y + 11}">{escape(text)}</text>' if len(text) > 2 else "")
        + "</g>"
    )


def _file(frame: str) -> str:
    found = FRAME.fullmatch(frame)
    return found["file"] if found else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
