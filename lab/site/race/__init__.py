"""The race: the same burst of customers hits several ways of selling, one after the other. A page shows it live."""
