"""What each rung claims, how it is checked, and the stored results."""
