"""Stock keeping: units are received, taken for orders by a strategy, and audited.

This package knows skus, quantities and order requests. It knows neither products nor the order tables.
"""
