"""`python -m servers FOLDER [postgres] [valkey]`: the keeper, which `manage.py servers start` starts."""

import sys
from pathlib import Path

from servers.errors import ServerError
from servers.supervisor import keep

if __name__ == "__main__":
    try:
        keep(Path(sys.argv[1]), sys.argv[2:])
    except ServerError as error:
        sys.exit(str(error))
