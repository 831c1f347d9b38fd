"""Run real servers as child processes in a private run folder: Postgres, Valkey, etcd and ZooKeeper."""

from servers.errors import ServerError
from servers.folder import RunFolder
from servers.process import Child
from servers.servers import Servers

__all__ = ["Child", "RunFolder", "ServerError", "Servers"]
