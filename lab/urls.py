"""The addresses below /lab/, there only while LAB_ENABLED: the pages for people, and an API for programs."""

from django.urls import include, path
from django.views.i18n import set_language

from lab import views
from lab.comparison.pages import comparison
from lab.pages import views as pages

urlpatterns = [
    path("", pages.ladder, name="lab-ladder"),
    path("rungs/<slug:slug>/", pages.rung, name="lab-rung"),
    path("rungs/<slug:slug>/play/", pages.play, name="lab-play"),
    path("essays/<slug:name>/", pages.essay, name="lab-essay"),
    path("race/", include("lab.race.urls")),
    path("comparison/", comparison, name="lab-comparison"),
    path("language/", set_language, name="lab-language"),
    path("rungs/", views.Rungs.as_view(), name="lab-rungs"),
    path("rungs/<slug:rung>/orders/", views.RungOrders.as_view(), name="lab-orders"),
    path("stock/<slug:sku>/", views.Stock.as_view(), name="lab-stock"),
]
