"""Ops that move entries and change none."""
