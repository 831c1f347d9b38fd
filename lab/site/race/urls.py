"""The addresses below /lab/race/."""

from django.urls import path

from lab.site.race import pages

urlpatterns = [
    path("", pages.start, name="lab-race-start"),
    path("<uuid:race>/", pages.watch, name="lab-race"),
    path("<uuid:race>/bars/", pages.bars, name="lab-race-bars"),
]
