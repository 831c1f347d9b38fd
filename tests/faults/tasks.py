"""The Celery application of the worker, with the flawed strategies registered."""

import os

import django

from shop import celery_app

__all__ = ["celery_app"]

django.setup()

from tests.faults import flawed  # noqa: E402

flawed.register(worker="FLAWED_WORKER" in os.environ)
