"""The admin, for the people who run a sale: one file a page or two."""

from shop.admin import dashboard, movements, orders, payments, people, sales, stock

__all__ = ["dashboard", "movements", "orders", "payments", "people", "sales", "stock"]
