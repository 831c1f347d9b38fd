"""The engine of the lab: it runs client threads step by step and searches for the order of steps that breaks a rung."""
