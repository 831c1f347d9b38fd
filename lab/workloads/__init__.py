"""What the clients of an experiment do, and how experiments are put together."""
