"""Signed tickets, which allow one customer to order in one sale for a limited time. Checking one needs no server."""

from __future__ import annotations

from datetime import datetime

from django.core.signing import BadSignature, Signer

from shop.sales.offers import Offer
from shop.waiting.errors import NotAdmitted

SALT = "shop.waiting.tickets"
"""Salt of the signature, so that no other signed text of the shop is valid as a ticket."""


def issue(offer: Offer, customer: int, ends_at: datetime) -> str:
    """Return a ticket.

    Args:
        customer: user id of the customer, the only one who can use it.
        ends_at: when the ticket expires, by the clock of the offer.
    """
    return Signer(salt=SALT).sign_object([offer.sale, customer, _ms(offer.opens_at), _ms(ends_at)])


def require(ticket: str, *, offer: Offer, customer: int) -> None:
    """Check that a ticket admits a customer to a sale.

    Raises:
        NotAdmitted: the ticket is missing, forged or expired, or belongs to another customer, another sale or another
            opening time.
    """
    if not ticket:
        raise NotAdmitted("This sale has a waiting room. Enter it, and order with the ticket when your turn has come.")
    try:
        its_sale, its_customer, opened_at, ends_at = Signer(salt=SALT).unsign_object(ticket)
    except (BadSignature, ValueError) as error:
        raise NotAdmitted("The shop has not issued this ticket. Enter the waiting room to get one.") from error
    if its_customer != customer:
        raise NotAdmitted("This ticket belongs to another customer. Enter the waiting room to get your own.")
    if its_sale != offer.sale:
        raise NotAdmitted("This ticket belongs to another sale. Enter the waiting room of this one.")
    if opened_at != _ms(offer.opens_at):
        raise NotAdmitted("The opening of the sale has moved since then. Enter the waiting room again.")
    if _ms(offer.clock.now()) >= ends_at:
        raise NotAdmitted("This ticket has ended. Enter the waiting room again.")


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
