"""The URLs of the project. The URLs of the lab are included by name, because the shop must not import the lab."""

from django.conf import settings
from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import include, path
from django.views.generic import RedirectView

from locking.contrib.django.admin import held_locks, release_by_force
from shop.admin.checked import Autocomplete
from shop.admin.live import live
from shop.admin.people import change_own_password
from shop.api.health import Ready, Started


def nothing(request: HttpRequest) -> HttpResponse:
    """Respond with 404, as for an unknown URL."""
    raise Http404


urlpatterns = [
    # Keep the most frequent URLs first, because Django tries them in this order.
    path("api/", include("shop.api.urls")),
    path("", include("shop.pages.urls")),
    path("health", Ready.as_view()),
    path("health/", Ready.as_view(), name="health"),
    path("health/started/", Started.as_view(), name="health-started"),
    path("admin/live/", admin.site.admin_view(live), name="admin_live"),
    path("admin/locks/", admin.site.admin_view(held_locks), name="admin_locks"),
    path("admin/locks/release/", admin.site.admin_view(release_by_force), name="admin_lock_release"),
    path("admin/password_change/", admin.site.admin_view(change_own_password), name="password_change"),
    # Disable unfold's search. No page links to it, and it fails if the page number is wrong or Redis is away.
    path("admin/search/", admin.site.admin_view(nothing)),
    path("admin/autocomplete/", admin.site.admin_view(Autocomplete.as_view(admin_site=admin.site))),
    path("admin", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
]
if settings.LAB_ENABLED:
    urlpatterns += [
        path("lab", RedirectView.as_view(pattern_name="lab-ladder")),
        path("lab/", include("lab.site.urls")),
    ]

handler400 = "shop.pages.error_pages.bad_request"
handler403 = "shop.pages.error_pages.forbidden"
handler404 = "shop.pages.error_pages.not_found"
handler500 = "shop.pages.error_pages.internal"
# django-allauth calls this view when a rate limit is reached.
handler429 = "shop.pages.account.too_many_requests"
