"""The shop's settings with the benchmark's endpoints."""

from shop.runtime.settings import *  # noqa: F403

ROOT_URLCONF = "loadtest.bench.urls"
