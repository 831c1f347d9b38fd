"""WSGI application: the shop with the benchmark's endpoints."""

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "loadtest.bench.settings"

from loadtest.bench.settings import API_MIDDLEWARE, PLAIN_MIDDLEWARE
from shop.runtime.wsgi import Application

application = Application({"/api/": API_MIDDLEWARE, "/plain/": PLAIN_MIDDLEWARE})
