"""The engine of the lab. It runs client threads step by step and searches for an order of steps that breaks a lock."""
