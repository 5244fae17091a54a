"""Ops with several operands: sums, products, concatenation."""
