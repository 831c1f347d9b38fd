"""URL patterns below /lab/: pages for people, and an API for programs. They exist only with LAB_ENABLED."""

from django.urls import include, path

from lab.site import api
from lab.site.choice.views import choice
from lab.site.comparison.views import comparison
from lab.site.pages import first_views, views
from lab.site.pages.ladder_map import ladder

urlpatterns = [
    path("", ladder, name="lab-ladder"),
    path("first/", first_views.first, name="lab-first"),
    path("first/<slug:slug>/", first_views.station, name="lab-station"),
    path("rungs/<slug:slug>/", views.rung, name="lab-rung"),
    path("rungs/<slug:slug>/play/", views.play, name="lab-play"),
    path("essays/<slug:name>/", views.essay, name="lab-essay"),
    path("race/", include("lab.site.race.urls")),
    path("comparison/", comparison, name="lab-comparison"),
    path("choice/", choice, name="lab-choice"),
    path("rungs/", api.Rungs.as_view(), name="lab-rungs"),
    path("rungs/<slug:rung>/orders/", api.RungOrders.as_view(), name="lab-orders"),
    path("stock/<slug:sku>/", api.Stock.as_view(), name="lab-stock"),
]
