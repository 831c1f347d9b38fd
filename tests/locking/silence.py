"""Machines that die: their clients close no connection, and their kernel answers no packet."""

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
"""A program of the kernel's packet filter, of one instruction: return 0, which keeps nothing of the packet."""


def drop_packets(descriptor: int) -> None:
    """Let the kernel drop every packet that arrives for a TCP socket, without an answer, and send nothing by itself.

    A proxy that forwards nothing, or a stopped process, does not show what a dead machine does: there the kernel still
    answers the keepalives of the other side. And a kernel that lives ends the connection when its own keepalives get
    no answer.
    """
    program = ctypes.create_string_buffer(DROP_EVERY_PACKET, len(DROP_EVERY_PACKET))
    with socket.socket(fileno=os.dup(descriptor)) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
        end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def die_with_the_machine() -> None:
    """Let this process and its side of every TCP connection stand still for ever."""
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
    """Acquire the lock, report it, and die as told, by `process` or by `machine`, when a message arrives."""
    lease = acquired(recipe(name, **options))
    pipe.send(lease.fence)
    pipe.recv()
    if death == "process":
        os.kill(os.getpid(), signal.SIGKILL)
    die_with_the_machine()
