"""OpenTelemetry traces of orders: from the request through locks, SQL and the queue to the save in a worker."""
