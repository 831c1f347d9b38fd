"""Sales: what they offer, and how they are preheated, opened and closed."""
