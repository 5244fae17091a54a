"""Noise: words of a secure generator, normals of them, and the mechanism that adds them to gradients."""
