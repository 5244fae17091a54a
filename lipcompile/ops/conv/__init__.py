"""Convolutions that are transposed."""
