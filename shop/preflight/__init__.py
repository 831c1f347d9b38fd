"""Check before a sale whether it will work: settings, servers and the sale. Each finding says what to do."""
