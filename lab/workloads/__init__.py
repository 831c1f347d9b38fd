"""Workloads: what the clients of an experiment do. An experiment is a workload, its possible faults and a checker."""
