"""Renderings of a `Derivation`. None of them computes a bound."""
