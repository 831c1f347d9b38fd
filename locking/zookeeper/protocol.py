"""Two requests to ZooKeeper that kazoo does not offer: create a container, and ask for the session timeout."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from kazoo.protocol.serialization import Close, Connect, Create, int_struct

if TYPE_CHECKING:
    from kazoo.client import KazooClient

SHORTEST_TIMEOUT = 0.001
"""Shortest timeout of a socket, in seconds. A timeout of 0 would make the socket non-blocking."""

CONTAINER = 4
"""Flag of a node that the server removes once it has been empty for a while."""


class CreateContainer(Create):  # type: ignore[misc, unused-ignore]
    """kazoo's request to create a node, with the type for a container.

    Source: https://issues.apache.org/jira/browse/ZOOKEEPER-2163
    """

    type = 19


def negotiated_timeout(client: KazooClient, seconds: float) -> float:
    """Return the session timeout, in seconds, that the server grants to this client.

    kazoo requests a timeout, and does not report the timeout that the server grants. So this function sends the same
    request again, for a session that it closes immediately. All servers of an ensemble are assumed to have the same
    limits.

    Args:
        client: a client that is connected.
        seconds: time limit for connecting, and for the answer.

    Raises:
        OSError, KazooException, AttributeError: there is no connection, or no answer within `seconds`.
    """
    asked: int = client._session_timeout
    deadline = time.monotonic() + seconds
    connection = client.handler.create_connection(
        client._connection._socket.getpeername()[:2],
        hostname=next(host for host, _ in client.hosts),
        timeout=seconds,
        use_ssl=client.use_ssl,
        ca=client.ca,
        certfile=client.certfile,
        keyfile=client.keyfile,
        keyfile_password=client.keyfile_password,
        verify_certs=client.verify_certs,
        check_hostname=client.check_hostname,
    )
    with connection, connection.makefile("rwb") as stream:
        connection.settimeout(max(deadline - time.monotonic(), SHORTEST_TIMEOUT))
        for request in (
            Connect(0, 0, asked, 0, bytes(16), client.read_only).serialize(),
            int_struct.pack(1) + int_struct.pack(Close.type),
        ):
            stream.write(int_struct.pack(len(request)) + request)
        stream.flush()
        try:
            (length,) = int_struct.unpack(stream.read(4))
            answer, _ = Connect.deserialize(stream.read(length), 0)
        except struct.error as error:
            raise ConnectionError("the server has closed the connection") from error
        stream.read()
    return float(answer.time_out) / 1000
