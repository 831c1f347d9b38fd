"""The ladder: rungs in order. A rung is a lock or a way of selling. Each flawed rung names the rung that fixes it."""
