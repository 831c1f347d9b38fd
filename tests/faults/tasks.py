"""The shop as Celery's worker runs it, with the negative controls beside its strategies."""

import os

import django

from shop import celery_app

__all__ = ["celery_app"]

django.setup()

from tests.faults import flawed  # noqa: E402

flawed.register(worker="FLAWED_WORKER" in os.environ)
