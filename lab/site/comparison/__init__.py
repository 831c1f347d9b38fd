"""The measured comparison: what each strategy and each lock costs, from the stored result of the benchmarks."""
