"""Tokens: embeddings, positions and the class token."""
