"""Activations and scales with parameters."""
