"""The Django signal by which the queue asks for a worker."""

from django.dispatch import Signal

worker_needed = Signal()
"""Sent when orders are queued and no worker is running. The receiver has to start `LuaQueue.work`."""
