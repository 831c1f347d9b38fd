"""The figures and alerts on the admin's overview: whether sales sell, stock is right, and an operator must act."""
