"""The shop: products, sales and orders, over REST, in the admin and in Celery."""

from shop.runtime.celery import app as celery_app

__all__ = ["celery_app"]
