"""The measured comparison: what each strategy and each lock costs, from a stored result of the benchmarks."""
