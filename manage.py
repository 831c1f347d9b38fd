#!/usr/bin/env python
"""Django's command line: `python manage.py help` lists the project's commands."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
        from django.db import OperationalError
        from redis import ConnectionError as RedisConnectionError
    except ImportError:
        sys.exit("Django is not installed for this Python. Use .venv/bin/python, which `make demo` makes.")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    except OperationalError as error:
        sys.exit(f"Postgres does not answer: {error}\nStart our own with: manage.py servers start")
    except RedisConnectionError as error:
        sys.exit(f"Redis does not answer: {error}\nStart our own with: manage.py servers start")


if __name__ == "__main__":
    main()
