"""The engine of the lab. It runs clients step by step, and searches for an order of steps that breaks an invariant."""
