"""URL patterns below /lab/race/."""

from django.urls import path

from lab.site.race import views

urlpatterns = [
    path("", views.start, name="lab-race-start"),
    path("<uuid:race>/", views.watch, name="lab-race"),
    path("<uuid:race>/bars/", views.bars, name="lab-race-bars"),
]
