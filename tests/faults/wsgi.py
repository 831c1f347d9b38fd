"""The WSGI application of the web server, with the flawed strategies registered."""

from shop.runtime.wsgi import application

__all__ = ["application"]

from tests.faults import flawed

flawed.register()
