"""Checks a lipcompile certificate with arithmetic and rules of its own; shares no code with the compiler."""

from __future__ import annotations

from .check import Problem, Verdict, steepness, verify

__all__ = ["Problem", "Verdict", "steepness", "verify"]
