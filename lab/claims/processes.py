"""Check rungs (locks and ways of selling) in several processes at a time. Each process has its own sandbox."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing import active_children, get_context
from multiprocessing.connection import wait
from typing import Any

from lab.claims import witness, worker
from lab.claims.interrupts import not_interrupted
from lab.sandbox import pool
from servers import ServerError


def in_processes(
    job: worker.JobName, slugs: Sequence[str], processes: int, **options: Any
) -> Generator[dict[str, Any], None, None]:
    """Do a job on rungs, several at a time.

    If the generator is closed early or interrupted, the processes end without finishing their jobs.

    Args:
        job: the job, see `worker.work`.
        slugs: the rungs.
        processes: number of processes.
        options: arguments of the job.

    Yields:
        The result line of each rung, as soon as the rung is done.

    Raises:
        ServerError: there are too few sandboxes, a server does not answer, or a process was killed.
    """
    processes = max(1, min(processes, len(slugs)))
    with ExitStack() as reserved:
        # Reserve all sandboxes together, so that every database exists before the work begins.
        for _ in range(processes):
            reserved.enter_context(pool.for_a_command())
    with ProcessPoolExecutor(processes, get_context("spawn"), worker.begin) as executor, _ended_with(executor):
        try:
            # Begin with the rungs that have the most schedules, so that the last processes end at about the same time.
            ordered = sorted(slugs, key=witness.schedules, reverse=True)
            with not_interrupted():
                done = [executor.submit(worker.work, job, slug, **options) for slug in ordered]
            for each in as_completed(done):
                yield each.result()
        except BrokenProcessPool as error:
            raise ServerError("A process that checked rungs was killed from outside. Run the command again.") from error


@contextmanager
def _ended_with(executor: ProcessPoolExecutor) -> Iterator[None]:
    """If the `with` block is left early, end the executor's processes: they clean up, or are killed after a time."""
    others = active_children()
    try:
        yield
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        workers = [child for child in active_children() if child not in others]
        for each in workers:
            each.terminate()
        until = time.monotonic() + worker.STOP_SECONDS
        for each in workers:
            if not wait([each.sentinel], max(0.0, until - time.monotonic())):
                each.kill()
        raise
