"""Configuration of the Django app `inventory`."""

from django.apps import AppConfig


class InventoryConfig(AppConfig):
    name = "inventory"
    verbose_name = "Stock"
    default_auto_field = "django.db.models.BigAutoField"
