"""A process that checks rungs. What needs Django is imported when Django is set up, and not before."""

from __future__ import annotations

import logging
from typing import Any

_stage: list[Any] = []


def begin(numbers: Any) -> None:
    """Set up this process, with the next stage of the queue `numbers`."""
    import django

    django.setup()
    logging.disable(logging.WARNING)
    from lab.schedule import stages

    _stage.append(stages.open_stage(numbers.get()))


def work(job: str, slug: str, **options: Any) -> dict[str, Any]:
    """Do `check`, `search`, `deep` or `control` of `lab.schedule.verify` on a rung.

    Returns:
        Its line. Where something is missing that the rung needs, that is what it says: other rungs do without.
    """
    from lab.schedule import verify
    from lab.schedule.fleet import Missing

    try:
        line: dict[str, Any] = getattr(verify, job)(slug, _stage[0], **options)
    except Missing as missing:
        line = verify.unchecked(slug, str(missing))
    return line
