"""A process ends when it is told to, whichever of its threads the kernel gives the signal to."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shop.runtime.stop_signal import STOP_SIGNALS
from tests.waiting import WAIT_TIMEOUT, wait_for

CHECKOUT = Path(__file__).resolve().parents[2]
SECOND_THREAD = """
second = threading.Thread(target=threading.Event().wait, daemon=True)
second.start()
print(second.native_id, flush=True)
stop.wait()
"""
STOPPED_BY_A_PIPE = f"""
import threading
from shop.runtime.stop_signal import StopSignal
stop = StopSignal()
{SECOND_THREAD}"""
STOPPED_BY_AN_EVENT = f"""
import signal, threading
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
{SECOND_THREAD}"""
LONG_ENOUGH = 1.0
"""Seconds after which a process that has not ended counts as one that waits on."""
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can signal one thread of a process")


def status_after(number: int, program: str, timeout: float) -> int:
    """Give a signal to the second thread of a program whose main thread waits. Return the program's exit status."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        try:
            second = int(process.stdout.readline())
            wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, "the main thread to wait")
            assert ctypes.CDLL(None).tgkill(process.pid, second, number) == 0
            return process.wait(timeout)
        finally:
            process.kill()


@linux
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_to_another_thread_ends_the_wait(number: signal.Signals) -> None:
    assert status_after(number, STOPPED_BY_A_PIPE, WAIT_TIMEOUT) == 0


@linux
def test_an_event_would_wait_on() -> None:
    """Negative control: Python calls the handler in the main thread, and nothing wakes that thread."""
    with pytest.raises(subprocess.TimeoutExpired):
        status_after(signal.SIGTERM, STOPPED_BY_AN_EVENT, LONG_ENOUGH)
