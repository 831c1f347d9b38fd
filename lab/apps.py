"""Django's entry to the room."""

from django.apps import AppConfig


class LabConfig(AppConfig):
    name = "lab"
    verbose_name = "Lab"
    default_auto_field = "django.db.models.BigAutoField"
