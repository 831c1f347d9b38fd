"""The addresses below /lab/, there only while LAB_ENABLED."""

from django.urls import path

from lab import views

urlpatterns = [
    path("rungs/", views.Rungs.as_view(), name="lab-rungs"),
    path("rungs/<slug:rung>/orders/", views.RungOrders.as_view(), name="lab-orders"),
    path("stock/<slug:sku>/", views.Stock.as_view(), name="lab-stock"),
]
