"""Workloads: the work of an experiment's clients. An experiment is a workload, its possible faults and a checker."""
