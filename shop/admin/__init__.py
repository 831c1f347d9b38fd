"""The admin, for the people who run a sale: one file a page or two."""

from shop.admin import dashboard, orders, people, sales, stock

__all__ = ["dashboard", "orders", "people", "sales", "stock"]
