"""Attention and products of two examples' tensors."""
