"""Losses, for classes and for numbers."""
