#!/usr/bin/env python
"""Django's command line: `python manage.py help` lists the project's commands."""

import os
import sys
from typing import NoReturn

HELP = (
    "manage.py servers status says where it should be, and whether it is ours or given. "
    "Start our own with: manage.py servers start"
)


def give_up(why: str) -> NoReturn:
    """End with a status that is nobody's verdict: 1 is what `audit` and `rush` say of broken stock."""
    sys.stderr.write(why + "\n")
    sys.exit(2)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
        from django.db import OperationalError, ProgrammingError
        from redis import ConnectionError as RedisConnectionError
    except ImportError:
        sys.exit("Django is not installed for this Python. Use .venv/bin/python, which `make demo` makes.")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        give_up(str(error))
    except OperationalError as error:
        give_up(f"Postgres does not answer: {error}\n{HELP}")
    except ProgrammingError as error:
        give_up(f"The tables are not as they should be: {error}\nMake them with: manage.py migrate")
    except RedisConnectionError as error:
        give_up(f"Redis does not answer: {error}\n{HELP}")


if __name__ == "__main__":
    main()
