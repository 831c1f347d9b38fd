"""Who goes next: actors that stop before every step, schedules of them, and the search for one that breaks a rung."""
