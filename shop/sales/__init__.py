"""Sales: their offers, and how they are preheated (their stock is loaded), paused and closed."""
