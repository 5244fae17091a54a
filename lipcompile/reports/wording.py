"""Sentences that all renderings share."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.derivation import Depth

VERDICTS: Mapping[bool, str] = {
    True: "This network can be trained privately without clipping gradients: the gradient of each example is "
    "bounded in advance.",
    False: "As it is, this network cannot be trained without clipping gradients. The findings say why, and what "
    "would mend it.",
}

_REGIMES: Mapping[str | None, str] = {
    None: "it depends on symbols without a value.",
    "contractive": "however deep the network, its bound stays below a limit, and gradients of early layers fade.",
    "critical": "the bound grows at most as a power of the depth.",
    "expansive": "the bound grows exponentially with depth.",
    "mixed": "some parts of the network enlarge what passes through them, and others shrink it.",
}

_LAYERS = "by the constants of its layers. Nothing that has a closed form stands several times in a row."


def regime(depth: Depth) -> str:
    """Return what the regime of a network means; without blocks it says nothing of a deeper one."""
    return _REGIMES[depth.regime] if depth.blocks else _LAYERS


# By whether a block's closed forms are exact.
EXACTNESS: Mapping[bool, str] = {
    True: "Its closed forms are what the rules give copy by copy.",
    False: "Its closed forms are not below what the rules give copy by copy.",
}

KINDS: Mapping[str, str] = {
    "scale": "keeps the network and makes its numbers smaller, and gradients with them",
    "structure": "makes it another network",
    "training": "trains the same one otherwise",
}

LESS_NOISE = (
    "A smaller bound is less noise for the same privacy; whether the signal keeps up is for a trial to say."
)

NUMBERS = (
    "Bounds are of the gradient of one example's loss, for all weights within their constraints. Numbers that "
    "something is at most are certified: they come from interval arithmetic, and are rounded up. Formulas are "
    "written for reading: constants of many digits are rounded, and parts that are too long are left out as ⋯."
)
COPIES = (
    "A row with × stands for so many copies: its numbers hold of each of them, its share is that of all, and ⋯ "
    "stands for formulas that differ from copy to copy, which Depth has."
)
PARTS = "What occurs several times in a formula has a name there, which means nothing elsewhere."

EVERYTHING = "`lipcompile report -o FILE.json` has them in full."
