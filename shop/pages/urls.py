"""The URLs of the storefront."""

from django.urls import include, path

from shop.pages.buying import buy
from shop.pages.guests import guest
from shop.pages.home import choose_language, favicon, home
from shop.pages.now import sale_now
from shop.pages.orders import order, orders
from shop.pages.paying import cancel, pay
from shop.pages.problem_types import problem_type
from shop.pages.sales import sale, sales
from shop.pages.tokens import token
from shop.pages.waiting import waiting

urlpatterns = [
    path("", home, name="home"),
    path("favicon.ico", favicon, name="favicon"),
    path("language/<slug:code>/", choose_language, name="language"),
    path("sales/", sales, name="sales"),
    path("sales/<slug:slug>/", sale, name="sale"),
    path("sales/<slug:slug>/now.json", sale_now, name="sale-now"),
    path("sales/<slug:slug>/buy/", buy, name="buy"),
    path("sales/<slug:slug>/guest/", guest, name="guest"),
    path("waiting/<slug:slug>/", waiting, name="waiting"),
    path("orders/", orders, name="orders"),
    path("orders/<uuid:order>/", order, name="order"),
    path("orders/<uuid:order>/pay/", pay, name="order-pay"),
    path("orders/<uuid:order>/cancel/", cancel, name="order-cancel"),
    path("api/problems/<slug:slug>/", problem_type, name="problem"),
    path("account/token/", token, name="account-token"),
    path("account/", include("shop.pages.account_urls")),
]
