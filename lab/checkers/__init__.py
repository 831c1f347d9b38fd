"""What must hold when the clients of an experiment are done."""
