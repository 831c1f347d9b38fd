"""The admin, for operators. Each file has one or two pages."""

from shop.admin import dashboard, movements, orders, payments, people, refunds, sales, stock, unmatched

__all__ = ["dashboard", "movements", "orders", "payments", "people", "refunds", "sales", "stock", "unmatched"]
