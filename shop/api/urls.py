"""The URLs below /api/."""

from django.urls import path
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import TemplateHTMLRenderer
from rest_framework_simplejwt.views import TokenObtainPairView, TokenRefreshView

from shop.api import views

schema = SpectacularAPIView.as_view(
    renderer_classes=[OpenApiYamlRenderer, OpenApiJsonRenderer],
    content_negotiation_class=DefaultContentNegotiation,
    http_method_names=["get", "head"],
)
docs = SpectacularSwaggerView.as_view(
    url_name="api-schema",
    renderer_classes=[TemplateHTMLRenderer],
    content_negotiation_class=DefaultContentNegotiation,
    http_method_names=["get", "head"],
)

urlpatterns = [
    path("token/", TokenObtainPairView.as_view(), name="api-token"),
    path("token/refresh/", TokenRefreshView.as_view(), name="api-token-refresh"),
    path("sales/", views.Sales.as_view(), name="api-sales"),
    path("sales/<int:sale>/", views.OneSale.as_view(), name="api-sale"),
    path("orders/", views.Orders.as_view(), name="api-orders"),
    path("orders/<uuid:order>/", views.OneOrder.as_view(), name="api-order"),
    path("orders/<uuid:order>/pay/", views.PayOrder.as_view(), name="api-order-pay"),
    path("orders/<uuid:order>/cancel/", views.CancelOrder.as_view(), name="api-order-cancel"),
    path("payments/", views.Payments.as_view(), name="api-payments"),
    path("problems/<slug:slug>/", views.Problems.as_view(), name="api-problem"),
    path("schema/", schema, name="api-schema"),
    path("docs/", docs, name="api-docs"),
]
