"""The Django signal by which the queue asks for a worker."""

from django.dispatch import Signal

worker_needed = Signal()
"""Sent when queued orders need a worker: none was woken yet, or one has ended its shift. The receiver has to start
`LuaQueue.work`."""
