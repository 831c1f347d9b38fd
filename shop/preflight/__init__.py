"""Preflight: check settings, servers and a sale before it opens. Each finding says what to do."""
