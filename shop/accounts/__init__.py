"""Accounts: log-in, sign-up, the limits on password guesses, browser sessions, and tokens of the API."""
