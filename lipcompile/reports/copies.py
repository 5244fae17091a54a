"""Layers that are copies of each other, and what is known of all of them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lipcompile.core.derivation import Block, Bound, LayerBounds
from lipcompile.reports.formulas import ELLIPSIS


def first_copies(blocks: Iterable[Block]) -> dict[str, str]:
    """Return the layer of the first copy by each layer of a later one; blocks may stand in copies of blocks."""
    nearest = {
        name: first
        for block in blocks
        for copy in block.layers[1:]
        for first, name in zip(block.layers[0], copy, strict=True)
    }

    def resolved(name: str) -> str:
        while name in nearest:
            name = nearest[name]
        return name

    return {name: resolved(name) for name in nearest}


def together(bounds: Sequence[Bound]) -> Bound:
    """Return what holds of all: the largest number if all are known, and ⋯ for formulas that differ."""
    numbers = [bound.value for bound in bounds]
    known = [number for number in numbers if number is not None]
    alike = all(bound.expression == bounds[0].expression for bound in bounds)
    largest = max(known) if len(known) == len(numbers) else None
    return Bound(bounds[0].expression if alike else ELLIPSIS, largest)


def layer_of_all(found: Sequence[LayerBounds]) -> LayerBounds:
    """Return what holds of all copies of a layer, under the name of the first."""
    return LayerBounds(
        found[0].name,
        output_norm=together([bounds.output_norm for bounds in found]),
        cotangent=together([bounds.cotangent for bounds in found]),
        lipschitz=together([bounds.lipschitz for bounds in found]),
    )


def grouped(names: Iterable[str], first: Mapping[str, str]) -> dict[str, list[str]]:
    """Return all copies of each layer by the first one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(first.get(name, name), []).append(name)
    return groups
