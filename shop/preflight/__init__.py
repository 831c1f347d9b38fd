"""Preflight: check settings, servers and a sale before it opens. Each warning and red finding says what to do."""
