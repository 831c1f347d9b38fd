"""Stock: receiving it, the strategies that take it for orders, and the audit that accounts for it.

This room knows skus, quantities and order requests. It knows neither products nor the order tables.
"""
