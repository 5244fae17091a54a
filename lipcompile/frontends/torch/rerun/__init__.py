"""Traces that are run and traced once more: with pairs for complex numbers, with batches for examples."""
