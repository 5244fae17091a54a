"""Attention, with projections of its own (`attention`) and of given queries, keys and values."""
