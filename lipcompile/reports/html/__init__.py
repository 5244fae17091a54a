"""The report as one HTML file that needs no network."""

from lipcompile.reports.html.page import render

__all__ = ["render"]
