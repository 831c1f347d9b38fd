"""A process ends when it is told to, whichever of its threads the kernel gives the signal to."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shop.runtime.stop_signal import STOP_SIGNALS
from tests.waiting import PATIENCE

CHECKOUT = Path(__file__).resolve().parents[2]
WAITS = """
import threading, time
from shop.runtime.stop_signal import StopSignal
stop = StopSignal()
other = threading.Thread(target=time.sleep, args=[1000], daemon=True)
other.start()
print(other.native_id, flush=True)
stop.wait()
"""
WAITS_FOR_AN_EVENT = """
import signal, threading, time
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())

def tell():
    while not stop._cond._waiters:
        time.sleep(0.01)
    time.sleep(0.2)  # the main thread has registered its wait, and is about to sleep
    print(threading.get_native_id(), flush=True)
    time.sleep(1000)

threading.Thread(target=tell, daemon=True).start()
stop.wait()
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has tgkill")


def status_after(number: int, program: str, timeout: float) -> int:
    """Give a signal to the second thread of a program. Return the program's exit status."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        thread = int(process.stdout.readline())
        try:
            assert ctypes.CDLL(None).tgkill(process.pid, thread, number) == 0
            return process.wait(timeout)
        finally:
            process.kill()


@linux
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_to_another_thread_ends_the_wait(number: signal.Signals) -> None:
    assert status_after(number, WAITS, PATIENCE) == 0


@linux
def test_an_event_would_wait_on() -> None:
    """Negative control: the handler of Python does not run, because nothing wakes the main thread."""
    with pytest.raises(subprocess.TimeoutExpired):
        status_after(signal.SIGTERM, WAITS_FOR_AN_EVENT, 1.0)
