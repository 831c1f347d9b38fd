"""Run a real Postgres and Valkey from PyPI wheels, as child processes in a private run folder."""

from servers.errors import ServerError
from servers.folder import RunFolder
from servers.process import Child
from servers.servers import Servers

__all__ = ["Child", "RunFolder", "ServerError", "Servers"]
