"""The addresses of the storefront."""

from django.contrib.auth.views import LoginView
from django.urls import path

from shop.pages.buying import buy
from shop.pages.home import choose_language, home
from shop.pages.orders import order, orders
from shop.pages.page import page
from shop.pages.paying import cancel, pay
from shop.pages.sales import sale, sales

urlpatterns = [
    path("", home, name="home"),
    path("language/<slug:code>/", choose_language, name="language"),
    path("sales/", sales, name="sales"),
    path("sales/<slug:slug>/", sale, name="sale"),
    path("sales/<slug:slug>/buy/", buy, name="buy"),
    path("orders/", orders, name="orders"),
    path("orders/<uuid:order>/", order, name="order"),
    path("orders/<uuid:order>/pay/", pay, name="order-pay"),
    path("orders/<uuid:order>/cancel/", cancel, name="order-cancel"),
    path(
        "account/login/", page(LoginView.as_view(template_name="shop/pages/account/login.html")), name="account_login"
    ),
]
