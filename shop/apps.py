"""Django app configuration of the shop."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"
    verbose_name = "Shop"

    def ready(self) -> None:
        """Wake a Celery worker whenever an order is queued."""
        from inventory.strategies.registry import worker_needed
        from shop.runtime.tasks import wake_worker

        worker_needed.connect(wake_worker)
