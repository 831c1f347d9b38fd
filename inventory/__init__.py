"""Stock: what is received and on hand, the strategies that take it, and the audit that accounts for it.

This room knows skus and quantities. It knows no product, no price list, no request.
"""
