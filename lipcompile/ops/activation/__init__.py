"""Activations without parameters."""
