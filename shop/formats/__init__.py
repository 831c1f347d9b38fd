"""How the admin writes dates."""
