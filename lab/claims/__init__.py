"""Check what each rung claims, flawed or sound, and store the results."""
