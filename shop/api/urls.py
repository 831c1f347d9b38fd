"""The URLs below /api/."""

from django.urls import path
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import TemplateHTMLRenderer

from shop.api import orders, payments, sales, tokens, waiting
from shop.api.schema_view import Schema

schema = Schema.as_view(
    renderer_classes=[OpenApiYamlRenderer, OpenApiJsonRenderer],
    content_negotiation_class=DefaultContentNegotiation,
    http_method_names=["get", "head"],
)
# Use the split view, whose script has its own URL: the Content-Security-Policy allows no script inside the page.
docs = SpectacularSwaggerSplitView.as_view(
    url_name="api-schema",
    template_name="shop/api_docs.html",
    renderer_classes=[TemplateHTMLRenderer],
    content_negotiation_class=DefaultContentNegotiation,
    http_method_names=["get", "head"],
)

urlpatterns = [
    path("token/", tokens.ObtainTokens.as_view(), name="api-token"),
    path("token/refresh/", tokens.RefreshTokens.as_view(), name="api-token-refresh"),
    path("token/sign-out/", tokens.SignOutEverywhere.as_view(), name="api-token-sign-out"),
    path("sales/", sales.Sales.as_view(), name="api-sales"),
    path("sales/<int:sale>/", sales.OneSale.as_view(), name="api-sale"),
    path("sales/<int:sale>/waiting/", waiting.WaitingRoom.as_view(), name="api-waiting"),
    path("orders/", orders.Orders.as_view(), name="api-orders"),
    path("orders/<uuid:order>/", orders.OneOrder.as_view(), name="api-order"),
    path("orders/<uuid:order>/pay/", orders.PayOrder.as_view(), name="api-order-pay"),
    path("orders/<uuid:order>/cancel/", orders.CancelOrder.as_view(), name="api-order-cancel"),
    path("payments/", payments.PaymentWebhook.as_view(), name="api-payments"),
    path("chargebacks/", payments.Chargebacks.as_view(), name="api-chargebacks"),
    path("schema/", schema, name="api-schema"),
    path("docs/", docs, name="api-docs"),
]
