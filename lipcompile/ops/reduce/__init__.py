"""Sums, means, maxima and norms over axes."""
