"""What may happen to the clients of an experiment and to their servers."""
