"""The addresses of the storefront."""

from django.contrib.auth.views import LoginView
from django.urls import path

from shop.pages.buying import buy
from shop.pages.home import choose_language, home
from shop.pages.now import sale_now
from shop.pages.orders import order, orders
from shop.pages.page import page
from shop.pages.sales import sale, sales
from shop.pages.tokens import token

urlpatterns = [
    path("", home, name="home"),
    path("language/<slug:code>/", choose_language, name="language"),
    path("sales/", sales, name="sales"),
    path("sales/<slug:slug>/", sale, name="sale"),
    path("sales/<slug:slug>/now.json", sale_now, name="sale-now"),
    path("sales/<slug:slug>/buy/", buy, name="buy"),
    path("orders/", orders, name="orders"),
    path("orders/<uuid:order>/", order, name="order"),
    path("account/token/", token, name="account-token"),
    path(
        "account/login/", page(LoginView.as_view(template_name="shop/pages/account/login.html")), name="account_login"
    ),
]
