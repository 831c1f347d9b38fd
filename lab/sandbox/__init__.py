"""Sandboxes: databases and servers in which schedules run, separate from the shop's own."""
