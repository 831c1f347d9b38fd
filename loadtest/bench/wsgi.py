"""WSGI application: the shop with the benchmark's endpoints."""

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "loadtest.bench.settings"

from shop.runtime.wsgi import application

__all__ = ["application"]
