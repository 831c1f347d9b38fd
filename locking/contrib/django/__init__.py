"""Django app with an admin page of the locks that are held."""
