"""The shop's settings with the benchmark's endpoints."""

from shop.runtime.settings import *  # noqa: F403

ROOT_URLCONF = "loadtest.bench.urls"
# The middleware that `django-admin startproject` writes into new settings.
PLAIN_MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
