"""Brute-force attacks on the rules of all ops and losses. Nothing here uses the runtime package."""
