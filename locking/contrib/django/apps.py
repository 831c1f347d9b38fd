"""Configuration of the Django app."""

from django.apps import AppConfig


class LockingConfig(AppConfig):
    name = "locking.contrib.django"
    label = "locking"
    verbose_name = "Locks"
