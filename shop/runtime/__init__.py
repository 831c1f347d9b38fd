"""What runs the shop: settings, URLs, the WSGI and Celery applications, and tasks."""
