"""Databases and servers in which schedules run, apart from the shop's own."""
