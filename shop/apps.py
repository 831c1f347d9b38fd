"""Django app configuration of the shop."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"
    verbose_name = "Shop"

    def ready(self) -> None:
        """Wake a Celery worker whenever an order is queued, and look at the first connection to Postgres.

        Addresses of accounts are changed by their owners alone, so the page that allauth has for operators is removed.
        """
        from allauth.account.models import EmailAddress
        from django.contrib import admin
        from django.db.backends.signals import connection_created

        from inventory.strategies.registry import worker_needed
        from shop.look import refuse_unknown_pooler
        from shop.runtime.tasks import wake_worker

        worker_needed.connect(wake_worker)
        connection_created.connect(refuse_unknown_pooler)
        admin.site.unregister(EmailAddress)
