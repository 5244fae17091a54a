"""Sentences that all renderings share."""

from __future__ import annotations

from collections.abc import Mapping

VERDICTS: Mapping[bool, str] = {
    True: "This network can be trained privately without clipping gradients: the gradient of each example is "
    "bounded in advance.",
    False: "This network cannot be trained so as it is. The findings say why, and what would mend it.",
}

REGIMES: Mapping[str | None, str] = {
    None: "it depends on symbols without a value.",
    "contractive": "with every copy, bounds of gradients shrink towards a limit, and early layers are told less.",
    "critical": "bounds grow slowly with depth, and no gradient fades.",
    "expansive": "bounds are multiplied with every copy.",
    "mixed": "some parts of the network enlarge distances, and others shrink them.",
}

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
PARTS = "What occurs several times in a formula has a name there, which means nothing elsewhere."

EVERYTHING = "`lipcompile report -o FILE.json` has them in full."
