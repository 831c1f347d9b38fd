"""Traces of orders for OpenTelemetry: from the request through locks, SQL and the queue to the save in a worker."""
