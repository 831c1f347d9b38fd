"""A simulated payment provider: a process of its own that pays nothing and reports what a buyer chooses.

It shares with the shop the secret that signs messages, and nothing else: it never opens the shop's database.
"""
