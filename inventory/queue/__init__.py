"""The queue of accepted orders in Redis, which workers save to Postgres."""
