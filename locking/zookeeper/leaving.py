"""Remove a node from the queue of a lock, even while its creation is still unanswered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kazoo.exceptions import ConnectionLoss, KazooException

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult


def leave_queue(client: KazooClient, queue: str, token: str) -> Any:
    """Remove the node of `token` from the queue, and try again after lost connections. Returns immediately.

    The request that creates the node may still be unanswered. The server runs the requests of a session in order, so it
    lists the queue after that request, and the list contains the node.

    Args:
        client: the client that created the node.
        queue: path of the queue.
        token: start of the node's name.

    Returns:
        An event that is set when the node is gone, or when the server refuses to remove it. In the second case, the
        node is gone when the session ends.
    """
    gone = client.handler.event_object()

    def look() -> None:
        if client.handler.running:
            client.sync_async(queue)
            client.get_children_async(queue).rawlink(found)
        else:  # the client was stopped, which ended its session
            gone.set()

    def found(result: IAsyncResult) -> None:
        try:
            nodes = [node for node in result.get_nowait() if node.startswith(token)]
        except ConnectionLoss:
            look()
        except KazooException:
            gone.set()
        else:
            if nodes:
                client.delete_async(f"{queue}/{nodes[0]}").rawlink(deleted)
            else:
                gone.set()

    def deleted(result: IAsyncResult) -> None:
        if isinstance(result.exception, ConnectionLoss):
            look()
        else:
            gone.set()

    look()
    return gone
