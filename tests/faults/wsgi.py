"""The shop as its web server runs it, with the negative controls beside its strategies.

What a dead process leaves behind ends sooner here: a round lasts two seconds, not ten.
"""

from shop.wsgi import application

__all__ = ["application"]

from shop import checkout
from tests.faults import flawed

checkout.RUNNING_TTL = 0.5
checkout.PREHEAT_TTL = 1.0
flawed.register()
