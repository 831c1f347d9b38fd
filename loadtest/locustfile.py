"""Entry point for Locust: `locust -f loadtest/locustfile.py`, with its web page, headless, or with `--processes 2`.

The burst is prepared when a test starts. When the test ends, the verdict is computed from the tables. It is reported as
a row of the statistics and as the exit status.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

import django

django.setup()

from locust import events  # noqa: E402

from loadtest import locust_events  # noqa: E402
from loadtest.shapes import AllAtOnce  # noqa: E402, F401 - Locust finds shapes and users among this module's names
from loadtest.users import Buyer  # noqa: E402, F401

events.init_command_line_parser.add_listener(locust_events.add_options)
events.init.add_listener(locust_events.on_init)
events.test_start.add_listener(locust_events.on_test_start)
events.test_stop.add_listener(locust_events.on_test_stop)
