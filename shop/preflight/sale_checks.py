"""Preflight checks of one sale."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings

from inventory.models import StockItem
from inventory.stock import all_on_hand
from inventory.strategies import registry
from shop import clock, conservation
from shop.models import Product, Sale
from shop.overview.alerts import AUDIT, PREHEAT
from shop.preflight.finding import KEEP, Finding
from shop.sales import lifecycle


def window(sale: Sale) -> Finding:
    check, now = "Window", clock.now()
    if sale.closes_at <= now:
        return Finding(
            check, "red", "The sale is over.", "To open a closed sale again, extend it.", "during-a-sale.md#stop-a-sale"
        )
    if sale.paused_at is not None:
        return Finding(
            check,
            "red",
            "The sale is paused: nobody can buy.",
            "Resume it when the reason is gone.",
            "during-a-sale.md#pause-a-sale",
        )
    when = f"from {sale.opens_at:%Y-%m-%d %H:%M:%S} to {sale.closes_at:%Y-%m-%d %H:%M:%S} UTC"
    return Finding(check, "ok", f"Open {when}.")


def in_stock(sale: Sale) -> Finding:
    check, skus = "Stock", sale.skus
    if not skus:
        return Finding(check, "red", "The sale offers no product.", "Add a product to the sale, with its price.")
    units = dict(StockItem.objects.filter(sku__in=skus).values_list("sku", all_on_hand()))
    if empty := [sku for sku in skus if not units.get(sku)]:
        return Finding(
            check, "red", f"Nothing is on hand of {', '.join(empty)}.", "Record a delivery on the page of the SKU."
        )
    return Finding(check, "ok", ", ".join(f"{units[sku]} of {sku}" for sku in skus) + ".")


def loaded(sale: Sale) -> Finding:
    """Check that the stock is loaded, or that it will be loaded before the sale opens."""
    check = "Stock is loaded"
    if problems := list(lifecycle.overlaps(sale, Product.objects.filter(saleitem__sale=sale))):
        return Finding(check, "red", str(problems[0]), "Change the window of one of them.")
    if sale.is_loaded:
        return Finding(check, "ok", f"Since {sale.preheated_at:%Y-%m-%d %H:%M:%S} UTC, for {sale.strategy}.")
    lead = timedelta(seconds=settings.PREHEAT_LEAD)
    if sale.paused_at is None and clock.now() > sale.opens_at - lead / 2:
        return Finding(check, "red", "It should be loaded by now.", PREHEAT)
    return Finding(check, "ok", f"Beat loads it {settings.PREHEAT_LEAD:g} s before the sale opens.")


def strategy(sale: Sale) -> Finding:
    check = "Strategy"
    if sale.strategy not in registry.NAMES:
        text = f"{sale.strategy} needs servers that the settings do not name, so every order is answered 503."
        return Finding(
            check, "red", text, "Set their addresses, the same for all processes.", "log.md#what-the-log-says"
        )
    if (risks := registry.risks(sale.strategy)) and settings.QUEUED_ORDERS_MAY_BE_LOST:
        return Finding(check, "warning", f"Queued orders may be lost, as you have accepted: {'; '.join(risks)}.", KEEP)
    if risks:
        return Finding(check, "red", f"{sale.strategy} is not preheated: {'; '.join(risks)}.", KEEP)
    return Finding(check, "ok", f"{sale.strategy} can be used.")


def guests(sale: Sale) -> Finding:
    """Check that guest checkout does not weaken a limit per customer or a waiting room."""
    check = "Guests"
    if not sale.guest_checkout:
        return Finding(check, "ok", "Every customer has an account.")
    limited = sale.items.exclude(limit=None).exists()
    counted = [*["the limit per customer"] * limited, *["the places of the waiting room"] * sale.waiting_room]
    if counted:
        text = (
            f"Each new guest is a new customer: {' and '.join(counted)} can be multiplied by changing browsers, as "
            "often as an address may sign up."
        )
        return Finding(check, "warning", text, "If that is too weak, switch guest checkout off.", "guests.md#guests")
    return Finding(check, "ok", "Guests may buy, and nothing is counted for each customer.")


def conserved(sale: Sale) -> Finding:
    if broken := [row.sku for row in conservation.figures(sale.skus) if not row.conserved]:
        text = f"The figures of {', '.join(broken)} do not agree."
        return Finding("Audit", "red", text, AUDIT, "incidents.md#the-verdict-is-broken")
    return Finding("Audit", "ok", "The figures of its stock agree.")


CHECKS = (window, in_stock, loaded, strategy, guests, conserved)
