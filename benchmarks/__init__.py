"""Benchmarks: each is run from the root of the repository."""
