"""Preflight checks of the settings of this process. Web servers, workers and beat must have the same settings."""

from __future__ import annotations

import shutil
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from shop.payments.provider import provider
from shop.payments.signed import SignedProvider
from shop.preflight.finding import Finding

CONNECT = "Set PAYMENT_SECRET, or name the class of your provider in PAYMENT_PROVIDER."
NAME_HOST = "Set ALLOWED_HOSTS to the host that customers use."
LOCAL = {"127.0.0.1", "[::1]"}
SHORTEST_SECRET = 16
LOW_DISK, FULL_DISK = 0.10, 0.03
"""Free share of the disk. The check warns below `LOW_DISK`, and is red below `FULL_DISK`."""


def debug() -> Finding:
    if settings.DEBUG:
        return Finding("DEBUG", "red", "Errors show settings and code to every visitor.", "Set DEBUG=0 and restart.")
    return Finding("DEBUG", "ok", "Errors show no details.")


def hosts() -> Finding:
    check = "ALLOWED_HOSTS"
    if "*" in settings.ALLOWED_HOSTS:
        return Finding(check, "red", "Any host name is believed, also in links of mails.", NAME_HOST)
    # A name without a dot, such as `web` in docker-compose.yml, is known only in its own network, so it is not public.
    public = [host for host in settings.ALLOWED_HOSTS if host not in LOCAL and ("." in host or ":" in host)]
    if not public:
        return Finding(check, "red", "Only this machine is answered; customers get 400.", NAME_HOST)
    return Finding(check, "ok", f"The shop answers to {', '.join(settings.ALLOWED_HOSTS)}.")


def https() -> Finding:
    if not settings.HTTPS:
        text = "Passwords and cookies travel unprotected."
        return Finding("HTTPS", "red", text, "Let a proxy serve the shop by HTTPS, and set HTTPS=1.")
    return Finding("HTTPS", "ok", "Cookies are sent by HTTPS only, and plain HTTP is redirected.")


def payments() -> Finding:
    check, secret = "Payments", settings.PAYMENT_SECRET
    try:
        chosen = provider()
    except ImproperlyConfigured as wrong:
        return Finding(check, "red", str(wrong), CONNECT)
    if not isinstance(chosen, SignedProvider) and chosen.origin:
        return Finding(check, "ok", f"Buyers pay at {chosen.origin}.")
    if not isinstance(chosen, SignedProvider):
        text = "The payment provider has no page, so orders have no button to pay."
        return Finding(check, "warning", text, "Set `origin` in its class to the page where buyers pay.")
    if not secret and settings.PAY_WITHOUT_PROVIDER:
        text = "Customers mark their own orders as paid."
        return Finding(check, "warning", text, "To take money, set PAYMENT_SECRET and unset PAY_WITHOUT_PROVIDER.")
    if not secret:
        return Finding(check, "red", "No order can be paid.", CONNECT)
    if len(secret) < SHORTEST_SECRET:
        text = f"PAYMENT_SECRET has fewer than {SHORTEST_SECRET} characters and can be guessed."
        return Finding(check, "red", text, "Agree on a longer secret.")
    if not settings.PAYMENT_PAGE:
        text = "Order pages lead to no page of the provider."
        return Finding(check, "warning", text, "Set PAYMENT_PAGE to the page where buyers pay.")
    return Finding(check, "ok", "The payment provider signs its reports.")


def mails() -> Finding:
    if "smtp" not in settings.EMAIL_BACKEND:
        text = "Mails are printed, not sent, so nobody can sign up or set a new password."
        return Finding("Mails", "warning", text, "Set EMAIL_URL to the address of the mail server.")
    if not settings.PUBLIC_URL:
        text = "Links in mails lead to the host that a request has named."
        return Finding("Mails", "warning", text, "Set PUBLIC_URL to the address of the shop.")
    return Finding("Mails", "ok", f"Mails are sent by {settings.EMAIL_HOST}.")


def disk() -> Finding:
    """Check the disk of this machine. The disks of servers on other machines cannot be checked from here."""
    ours = settings.DATABASE_IS_OURS or settings.REDIS_IS_OURS
    folder = Path(settings.RUN_FOLDER.path) if ours else Path(settings.BASE_DIR)
    while not folder.exists():
        folder = folder.parent
    space = shutil.disk_usage(folder)
    free, said = space.free / space.total, f"{space.free / 1e9:.1f} GB of {folder} is free"
    if free < FULL_DISK:
        return Finding("Disk", "red", f"Only {said}. A full disk stops Postgres and Redis.", "Make room now.")
    if free < LOW_DISK:
        return Finding("Disk", "warning", f"Only {said}.", "Make room before the sale.")
    elsewhere = "" if ours else " The disks of Postgres and Redis cannot be seen from here."
    return Finding("Disk", "ok", f"{said}.{elsewhere}")


CHECKS = (debug, hosts, https, payments, mails, disk)
