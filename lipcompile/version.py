"""The version, for whatever writes it into what it makes."""

from __future__ import annotations

__version__ = "0.2.0"
