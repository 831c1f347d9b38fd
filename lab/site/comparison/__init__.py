"""The comparison: the measured cost of each strategy and each lock, from the stored results of the benchmarks."""
