#!/usr/bin/env python
"""Django's command line: `python manage.py help` lists the project's commands."""

import os
import signal
import sys
import traceback
from typing import NoReturn

HELP = (
    "manage.py servers status says where it should be, and whether it is ours or given. "
    "Start our own with: manage.py servers start"
)


def give_up(why: str) -> NoReturn:
    """End with a status that is nobody's verdict: 1 is what `audit` and `rush` say of broken stock."""
    sys.stderr.write(why + "\n")
    sys.exit(2)


def end_unheard() -> NoReturn:
    """Nobody reads on: `| head`, say. The status is that of who is ended by SIGPIPE, and no verdict either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python trips over it once more
    sys.exit(128 + signal.SIGPIPE)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
        from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError
        from redis import ConnectionError as RedisConnectionError
    except ImportError:
        give_up("Django is not installed for this Python. Use .venv/bin/python, which `make demo` makes.")
    try:
        execute_from_command_line(sys.argv)
        sys.stdout.flush()
    except BrokenPipeError:
        end_unheard()
    except ImproperlyConfigured as error:
        give_up(str(error))
    except (OperationalError, InterfaceError, InternalError) as error:
        give_up(f"Postgres does not answer, or not as it should: {error}\n{HELP}")
    except ProgrammingError as error:
        give_up(f"The tables are not as they should be: {error}\nMake them with: manage.py migrate")
    except RedisConnectionError as error:
        give_up(f"Redis does not answer: {error}\n{HELP}")
    except Exception:
        give_up(traceback.format_exc().rstrip())


if __name__ == "__main__":
    main()
