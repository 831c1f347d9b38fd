"""Django's entry to the room."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"
    verbose_name = "Shop"

    def ready(self) -> None:
        """Have a worker come when orders are queued."""
        from inventory.strategies.registry import queued
        from shop.runtime.tasks import wake_worker

        queued.connect(wake_worker)
