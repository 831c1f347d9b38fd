"""The shop as its web server runs it, with the negative controls beside its strategies."""

from shop.runtime.wsgi import application

__all__ = ["application"]

from tests.faults import flawed

flawed.register()
