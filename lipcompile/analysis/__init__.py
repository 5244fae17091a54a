"""Passes: Graph -> Derivation, one file a concept."""
