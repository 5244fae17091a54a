"""Normalisation of layers, groups and channels, and of local responses."""
