"""Ops that copy, pad, crop and resize."""
