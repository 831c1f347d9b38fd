"""Django's entry to the room; nothing else in it knows Django, but for the admin's page."""

from django.apps import AppConfig


class LockingConfig(AppConfig):
    name = "locking"
    verbose_name = "Locks"
