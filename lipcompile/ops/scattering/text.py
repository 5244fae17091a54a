"""The scattering transform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lipcompile.core.graph import Node
from lipcompile.emitters.torch.pieces import Expression


def _scattering(node: Node, operands: Sequence[str]) -> str:
    bank = node.attributes
    return f"functional.scattering2d({operands[0]}, {bank.scales}, angles={bank.angles}, order={bank.order})"


EXPRESSIONS: Mapping[str, Expression] = {"scattering2d": _scattering}
