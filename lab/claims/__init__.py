"""Check the claim of each rung, a lock or a way of selling: flawed or sound. Store the results."""
