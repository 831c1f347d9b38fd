"""Load tests: bursts of orders by simulated buyers over HTTP. After a burst, the database tables give its verdict."""
