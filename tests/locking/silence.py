"""Simulate dead machines: their clients close no connection, and their kernel answers no packet."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from tests.locking.support import Recipe, acquired

SO_ATTACH_FILTER = 26
DROP_EVERY_PACKET = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter with one instruction for the kernel: return 0, keep no byte of the packet."""


def drop_packets(descriptor: int) -> None:
    """Make the kernel drop all packets to a TCP socket, answer none, and send none by itself.

    A stopped process or a silent proxy does not simulate a dead machine: the kernel still answers keepalives. This
    side sends no keepalives either, because without answers they would end the connection.
    """
    program = ctypes.create_string_buffer(DROP_EVERY_PACKET, len(DROP_EVERY_PACKET))
    with socket.socket(fileno=os.dup(descriptor)) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
        end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def die_with_the_machine() -> None:
    """Stop this process, and its end of every TCP connection, for ever."""
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        try:
            is_tcp = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with is_tcp:
            if is_tcp.family in (socket.AF_INET, socket.AF_INET6) and is_tcp.type == socket.SOCK_STREAM:
                drop_packets(descriptor)
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_until(death: str, recipe: Recipe, name: str, options: dict[str, Any], pipe: Pipe) -> None:
    """Acquire the lock, report it, and die when a message arrives: the `process` alone, or its `machine`."""
    lease = acquired(recipe(name, **options))
    pipe.send(lease.fence)
    pipe.recv()
    if death == "process":
        os.kill(os.getpid(), signal.SIGKILL)
    die_with_the_machine()
