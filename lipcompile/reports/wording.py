"""Sentences that all renderings share."""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.analysis.usefulness import LARGEST_EXCESS
from lipcompile.core.derivation import Depth, Derivation
from lipcompile.diagnostics import Severity
from lipcompile.reports.rows import Measured

_VERDICTS: Mapping[bool, str] = {
    True: "This network can be trained privately without clipping gradients: the gradient of each example is "
    "bounded in advance.",
    False: "As it is, this network cannot be trained without clipping gradients. The findings say why, and what "
    "would fix it.",
}

_CLIPPED = (
    "This network can be trained privately: the gradient of each example is bounded, by theorem or by a clip in "
    "the backward pass. The table says which."
)

# A bound that holds, and is rejected because it is of no use.
_HOPELESS = ("LIP310", "LIP311")
_OF_NO_USE = (
    "The bound of this network holds, and is of no use: noise in its proportion would drown the gradients at any "
    "usual budget. `--bounds auto` clips gradients where theorems do not serve; the findings say more."
)


def verdict(derivation: Derivation) -> str:
    """Return what the verdict on a model means."""
    if _is_hopeless(derivation):
        return _OF_NO_USE
    clipped = derivation.ok and derivation.analysis is not None and derivation.analysis.graph.clips
    return _CLIPPED if clipped else _VERDICTS[derivation.ok]


def badge(derivation: Derivation) -> str:
    """Return the verdict on a model in a few words."""
    if _is_hopeless(derivation):
        return "rejected: useless bound"
    return "accepted" if derivation.ok else "rejected"


def _is_hopeless(derivation: Derivation) -> bool:
    errors = [found.code for found in derivation.diagnostics if found.severity == Severity.ERROR]
    return bool(errors) and all(code in _HOPELESS for code in errors)


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
    True: "Its closed forms equal the results of the rules for each copy in turn.",
    False: "Its closed forms are upper bounds of the results of the rules for each copy in turn.",
}

KINDS: Mapping[str, str] = {
    "scale": "keeps the network and makes its numbers smaller, and gradients with them",
    "structure": "makes it another network",
    "training": "trains the same one otherwise",
}

LESS_NOISE = (
    "A smaller bound is less noise for the same privacy; whether the signal keeps up is for a trial to say."
)
RANKED = (
    "They are ranked by the gain: signal over noise of the changed model, divided by that of the model as it is. "
    "A gain of 1 is no improvement, however small the bound: gradients have become smaller with it."
)


def suggested(*, ranked: bool) -> str:
    """Return how a list of changes is to be read; `ranked` by signal over noise, else by the bound."""
    return RANKED if ranked else LESS_NOISE


def signal(found: Measured) -> str:
    """Return what is measured, and beside which noise."""
    return (
        "Norms of gradients of random examples at the initial weights, and of the noise on the mean of a batch of "
        f"{found.batch:,} at noise multiplier {found.noise_multiplier:.4g}. Steps average the noise away: "
        f"{_STEPS} Above {LARGEST_EXCESS:g} times a typical gradient a bound is of no use."
    )


_STEPS = "where it is n times the mean gradient, it takes about n² of them to see that gradient once."

NUMBERS = (
    "Bounds are of the gradient of one example's loss, for all weights within their constraints. Numbers that "
    "something is at most are certified: they come from interval arithmetic, and are rounded up. Formulas are "
    "written for reading: constants of many digits are rounded, and parts that are too long are left out as ⋯."
)
COPIES = (
    "A row with × stands for so many copies: its numbers hold of each of them, its share is that of all, and ⋯ "
    "stands for formulas that differ from copy to copy, which Depth has."
)
PARTS = "A part that occurs several times in a formula has a name, which is valid in this formula only."

EVERYTHING = "`lipcompile report -o FILE.json` has them in full."
