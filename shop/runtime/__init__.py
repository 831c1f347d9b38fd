"""Settings, URLs, the WSGI and Celery applications, tasks and the web server."""
