"""The life of an order: placed, saved, paid, returned, cancelled or expired."""
