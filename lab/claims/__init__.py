"""Check the claim of each rung (a lock or a way of selling) to be flawed or sound. Store the results."""
