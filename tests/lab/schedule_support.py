"""What the tests of schedules share: a stage of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.schedule.stage import Stage
from lab.schedule.stages import open_stage
from servers import Servers

NUMBER = 3
"""The stage's. Those that visitors borrow come before it."""


@pytest.fixture(scope="module")
def stage(servers: Servers, django_db_setup: None, django_db_blocker: object) -> Iterator[Stage]:
    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        opened = open_stage(NUMBER)
        yield opened
        opened.close()
