"""Template tags of the shop's pages."""
