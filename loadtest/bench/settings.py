"""The shop's settings, with the benchmark's endpoints beside its own."""

from shop.runtime.settings import *  # noqa: F403

ROOT_URLCONF = "loadtest.bench.urls"
