"""Ops that exporters spell in arithmetic, recognised."""
