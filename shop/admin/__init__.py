"""The admin, which operators use."""

from shop.admin import dashboard, movements, orders, payments, people, refunds, sales, stock, theme, unmatched

__all__ = ["dashboard", "movements", "orders", "payments", "people", "refunds", "sales", "stock", "theme", "unmatched"]
