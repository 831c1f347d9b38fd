"""Processes that run benchmark clients. One process is not enough: it uses little more than one processor.

A process is `python -m loadtest.bench.client_processes`. It reads a plan as a line of JSON, connects its clients,
writes `ready`, and starts them when it reads `go`. It ends when its input ends, so it does not outlive the benchmark.
"""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

if __name__ == "__main__":
    import django

    django.setup()

import json
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from types import TracebackType
from typing import Self

import psutil

from loadtest.bench import clients
from loadtest.bench.clients import ClientResults, Plan


class ClientProcesses:
    """Processes that share the clients of a plan. As a context manager, it starts and ends the processes.

    Args:
        count: number of processes.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        command = (sys.executable, "-m", "loadtest.bench.client_processes")
        for _ in range(self.count):
            self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def run(self, plan: Plan) -> ClientResults:
        """Run the clients of a plan.

        Raises:
            RuntimeError: a process has ended; its error is on standard error.
        """
        shares = [plan.customers[number :: self.count] for number in range(self.count)]
        working = [(process, share) for process, share in zip(self.processes, shares, strict=True) if share]
        results = ClientResults()
        try:
            for process, share in working:
                _send(process, json.dumps(asdict(replace(plan, customers=share))))
            for process, _ in working:
                _receive(process)
            psutil.cpu_percent()  # Begin to measure: the next call returns the busy share since this call.
            for process, _ in working:
                _send(process, "go")
            for process, _ in working:
                results.add(ClientResults(**json.loads(_receive(process))))
        except BrokenPipeError:
            raise RuntimeError("A process with clients has ended. Its error is above.") from None
        results.cpu = psutil.cpu_percent() / 100
        return results


def _send(process: subprocess.Popen[str], line: str) -> None:
    if process.stdin:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


def _receive(process: subprocess.Popen[str]) -> str:
    if line := process.stdout.readline() if process.stdout else "":
        return line
    raise BrokenPipeError


def main() -> None:
    # Ignore Ctrl-C, which the terminal sends to this process, too. The benchmark ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in iter(sys.stdin.readline, ""):

        def wait_for_start() -> None:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.readline()

        sys.stdout.write(json.dumps(asdict(clients.run(Plan(**json.loads(line)), wait_for_start))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
