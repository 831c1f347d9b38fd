"""The page of held locks in Django's admin."""
