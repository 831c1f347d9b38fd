"""What the web server runs: `manage.py serve` starts granian on it."""

import gc
import os

from django.core.wsgi import get_wsgi_application
from django.urls import reverse

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

application = get_wsgi_application()

# Load the addresses, and with them all the code behind them, so that no buyer waits for that. What is there by now
# stays: the collector need not go through its hundred thousand objects, while everybody waits, again and again.
reverse("health")
gc.collect()
gc.freeze()
