"""The life of an order: placed, saved, paid, cancelled, expired."""
