"""Constraints of weights, and certificates that they hold.

Norms with proved bounds, projection, drift, rounding.

Imports `layers` for functions alone; nothing here trains or draws.
"""
