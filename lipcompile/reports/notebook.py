"""A derivation as a small table for notebooks."""

from __future__ import annotations

from lipcompile.core.derivation import Derivation
from lipcompile.reports.document import document
from lipcompile.reports.html.environment import environment

_ROWS = 20


def table(derivation: Derivation) -> str:
    """Return HTML without style of its own: verdict, requirements, findings, bounds by parameter, the total."""
    shown = document(derivation, limit=_ROWS)
    return environment().get_template("notebook.html.jinja").render(document=shown)
