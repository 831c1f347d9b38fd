"""The Django app that adds the page of held locks to the admin."""

from django.apps import AppConfig


class LockingConfig(AppConfig):
    name = "locking.contrib.django"
    label = "locking"
    verbose_name = "Locks"
