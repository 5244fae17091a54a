"""The graph, its diagnostics and its derivation: what every other room speaks of.

Imports `numbers` and `ops.record` alone.
"""
