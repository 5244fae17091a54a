"""Attacks: on bounds, by ascent; on privacy, by canaries and guesses."""
