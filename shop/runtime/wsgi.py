"""The WSGI application, which `manage.py serve` runs."""

import gc
import os

from django.core.wsgi import get_wsgi_application
from django.urls import reverse

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.runtime.settings")

application = get_wsgi_application()

# Load the URLs and all the code behind them now, so that no customer waits for it. Then exclude all objects that exist
# from garbage collection: going through a hundred thousand of them again and again would delay every request.
reverse("health")
gc.collect()
gc.freeze()
