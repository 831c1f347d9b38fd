"""Run the supervisor: `python -m servers FOLDER [postgres] [valkey] [etcd] [zookeeper]`.

`manage.py servers start` calls it.
"""

import sys
from pathlib import Path

from servers.errors import ServerError
from servers.supervisor import supervise

if __name__ == "__main__":
    try:
        supervise(Path(sys.argv[1]), sys.argv[2:])
    except ServerError as error:
        sys.exit(str(error))
