"""API view of a sale's waiting room: enter the room, or get your place. `shop.waiting.room` has the rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from shop.api.requests import customer_of, is_guest
from shop.api.serializers import StandingSerializer, moment
from shop.api.throttles import LookRate
from shop.orders.errors import NoGuests, SaleNotOpen
from shop.sales import offers
from shop.sales.offers import Offer
from shop.waiting import room
from shop.waiting.room import Standing

NO_STORE = {"Cache-Control": "no-store"}
"""Response headers that forbid caching, because the response may contain the ticket of one customer."""


class WaitingRoom(APIView):
    """The caller's place in the waiting room of a sale."""

    throttle_classes = (LookRate,)

    @extend_schema(responses=StandingSerializer)
    def get(self, request: Request, sale: int) -> Response:
        """Look at your place in the waiting room, without entering the room."""
        return self._answer(request, sale, room.look)

    @extend_schema(
        request=None,
        responses=StandingSerializer,
    )
    def post(self, request: Request, sale: int) -> Response:
        """Enter the waiting room, or look at your place if you are in it. Repeating this changes nothing."""
        return self._answer(request, sale, room.enter)

    def _answer(self, request: Request, sale: int, find: Callable[[Offer, int], Standing]) -> Response:
        offer = _offer_with_room(sale)
        if is_guest(request) and not offer.guest_checkout:
            raise NoGuests(offer.name)
        standing = find(offer, customer_of(request))
        return Response(standing_json(standing), headers=NO_STORE)


def _offer_with_room(sale: int) -> Offer:
    """Return the offer of a sale that has a waiting room and is not over.

    Raises:
        Http404: there is no such sale, or it has no waiting room.
        SaleNotOpen: the sale is over.
    """
    offer = offers.get(sale)
    if offer is None:
        raise Http404(f"There is no sale {sale}.")
    if not offer.waiting_room:
        raise Http404(f"Sale {sale} has no waiting room. Order without a ticket.")
    if offer.clock.now() >= offer.closes_at:
        raise SaleNotOpen(f"{offer.name} is over.")
    return offer


def standing_json(standing: Standing) -> dict[str, Any]:
    """Return the JSON of a customer's place in a waiting room."""
    return {
        "state": standing.state,
        "entered": standing.entered,
        "place": standing.place,
        "ahead": standing.ahead,
        "estimate": standing.estimate,
        "poll_after": standing.poll_after,
        "ticket": standing.ticket or None,
        "ends_at": moment(standing.ends_at) if standing.ends_at else None,
    }
