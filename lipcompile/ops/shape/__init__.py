"""Ops that move entries, cut or drop some, or clip the whole."""
