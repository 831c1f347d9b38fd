"""Accounts: who may log in, how often they may guess a password, and how long their tokens last."""
