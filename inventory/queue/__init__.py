"""The queue of accepted orders in Redis."""
