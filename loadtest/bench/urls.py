"""The shop's URLs and the benchmark's endpoints."""

from django.urls import include, path

from loadtest.bench import views

urlpatterns = [
    path("plain/", views.Plain.as_view()),
    path("api/bench/empty/", views.Empty.as_view()),
    path("api/bench/redis-py-lock/", views.RedisPyLockOrders.as_view()),
    path("", include("shop.runtime.urls")),
]
