#!/usr/bin/env python
"""Django's command line: `python manage.py help` lists the project's commands."""

import os
import signal
import sys
import traceback
from typing import NoReturn

HELP = "Show the address with manage.py servers status. Start the project's own servers with manage.py servers start."


def fail(message: str) -> NoReturn:
    """Print the message and exit with status 2. Status 1 would mean broken stock in `audit` and `rush`."""
    sys.stderr.write(message + "\n")
    sys.exit(2)


def exit_on_broken_pipe() -> NoReturn:
    """End the process as SIGPIPE would, for example when the output is piped into `head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python's flush at exit fails
    sys.exit(128 + signal.SIGPIPE)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
        from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError
        from redis import ConnectionError as RedisConnectionError
    except ImportError:
        fail("Django is not installed for this Python. Run `make demo` once, then use .venv/bin/python.")
    try:
        execute_from_command_line(sys.argv)
        sys.stdout.flush()
    except BrokenPipeError:
        exit_on_broken_pipe()
    except ImproperlyConfigured as error:
        fail(str(error))
    except (OperationalError, InterfaceError, InternalError) as error:
        fail(f"Postgres does not answer, or reports an error: {error}\n{HELP}")
    except ProgrammingError as error:
        fail(f"The tables do not match the code: {error}\nApply the migrations with manage.py migrate.")
    except RedisConnectionError as error:
        fail(f"Redis does not answer: {error}\n{HELP}")
    except Exception:
        fail(traceback.format_exc().rstrip())


if __name__ == "__main__":
    main()
