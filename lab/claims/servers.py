"""Start the servers on which a command runs schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import redis
from django.conf import settings
from django.db import connections

from servers import Servers


@contextmanager
def running() -> Iterator[None]:
    """Inside the `with` block, run the project's own servers where no others are configured."""
    owned = {"postgres": settings.DATABASE_IS_OURS, "valkey": settings.REDIS_IS_OURS}
    with ExitStack() as stack:
        if wanted := tuple(name for name, is_owned in owned.items() if is_owned):
            started = stack.enter_context(Servers(settings.RUN_FOLDER, runs=wanted))
            stack.callback(connections.close_all)
            if started.owned and settings.REDIS_IS_OURS:
                # This process has started the server, so nothing else uses it, and the data of schedules need not
                # survive a crash.
                redis.Redis.from_url(settings.REDIS_LOCATION).config_set("appendfsync", "no")
        yield
