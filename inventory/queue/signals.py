"""The signal with which the queue asks for a worker."""

from django.dispatch import Signal

worker_needed = Signal()
"""Sent when an order is queued and no worker is running: the receiver has to start `LuaQueue.work`."""
