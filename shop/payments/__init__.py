"""Payment providers: their interface, a provider for the shop's own protocol, and a simulator to try the shop with."""
