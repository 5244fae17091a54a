"""Tables of what was measured, as text, and a verdict on each target."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .worker import MIB

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""What was measured of each contestant, by "network batch" and contestant."""

OURS = ("global", "per_layer", "optimal")
PRIVATE = (*OURS, "correlated", "secure")
CONVNETS, ALL = ("mnist", "cifar"), ("mlp", "mnist", "cifar", "mixer")
CLIPPED = (*ALL, "opacus", "vgg", "resnet", "vit")
BATCHES, LARGE = (128, 512, 2048), (512, 2048)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a ratio over the rounds."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True)
class Target:
    """What is promised of ours, for every network and batch size that it names.

    Args:
        upper, lower: contestants of the ratio; "ours": each way of sharing the noise among layers.
        limit: of the median.
        least: the ratio is at least the limit, not at most.
        memory: of peak memory, not of time.
    """

    upper: str
    lower: str
    networks: tuple[str, ...]
    batches: tuple[int, ...]
    limit: float
    least: bool = False
    memory: bool = False

    def pairs(self) -> Iterator[tuple[str, str, str]]:
        """Yield (cell, upper, lower)."""
        for network in self.networks:
            for batch in self.batches:
                for upper in OURS if self.upper == "ours" else (self.upper,):
                    for lower in OURS if self.lower == "ours" else (self.lower,):
                        yield f"{network} {batch}", upper, lower

    def __str__(self) -> str:
        networks = "all networks" if self.networks == ALL else ", ".join(self.networks)
        batches = "all batches" if self.batches == BATCHES else ", ".join(map(str, self.batches))
        what = "memory: " if self.memory else ""
        sign = ">=" if self.least else "<="
        return f"{what}{self.upper} / {self.lower} {sign} {self.limit:.2f}; {networks}; {batches}"


TARGETS = (
    Target("ours", "same layers", CONVNETS, (512, 2048), 1.10),
    Target("ours", "same layers", CONVNETS, (128,), 1.25),
    Target("ours", "same layers", ("mlp",), (512,), 1.30),
    Target("ours", "same layers", ("mlp",), (2048,), 1.10),
    Target("same layers", "relu", CONVNETS, BATCHES, 1.30),
    Target("ghost", "ours", ALL, BATCHES, 1.0, least=True),
    Target("ghost", "ours", CONVNETS, (512, 2048), 1.7, least=True),
    Target("hooks", "ours", ALL, BATCHES, 3.0, least=True),
    Target("hooks", "ours", ("mlp",), BATCHES, 20.0, least=True),
    Target("ours", "same layers", ALL, BATCHES, 1.10, memory=True),
    Target("clip", "relu", ("mlp", "mixer", "vit"), LARGE, 1.30),
    Target("clip", "relu", ("mnist", "cifar", "opacus", "vgg", "resnet"), LARGE, 1.50),
    Target("ghost", "clip", CLIPPED, LARGE, 1.0, least=True),
    Target("hooks", "clip", CLIPPED, LARGE, 1.0, least=True),
    Target("clip", "relu", CLIPPED, LARGE, 1.50, memory=True),
)


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def ratio(cells: Cells, cell: str, upper: str, lower: str, clock: str) -> Spread | None:
    """Return the ratio of two contestants, round by round; None if one was left out.

    Args:
        clock: "wall" or "cpu", or "mean", that of the wall; "peak" for memory, of which there is one figure.
    """
    above, below = (cells.get(cell, {}).get(name, {}).get(clock) for name in (upper, lower))
    if above is None or below is None:
        return None
    pairs = [(above, below)] if clock == "peak" else zip(above, below, strict=True)
    return spread([one / other for one, other in pairs])


def render(cells: Cells, clock: str) -> Iterator[str]:
    """Yield the lines of all tables."""
    names = list(dict.fromkeys(name for rows in cells.values() for name in rows))
    yield from _table(f"milliseconds a step ({clock}, median of rounds)", cells, names, _milliseconds(clock))
    yield from _table("peak memory above the start of training, MiB", cells, names, _mebibytes)
    private = [name for name in names if name in PRIVATE]
    yield from _table("weights certified in full, a step", cells, private, _certificates)
    yield from _ratios("times the step of the same layers without privacy", cells, _over(names), clock)
    yield from _ratios("the same, of means: certificates count whenever they are", cells, _over(names), "mean")
    yield from _ratios("times ours (optimal or clip), or ReLU", cells, _others(names), clock)
    yield from _ratios("memory, times that of the same layers", cells, _over(names), "peak")
    yield from _ratios("memory, clip", cells, [pair for pair in _others(names) if "clip" in pair], "peak")
    yield from _verdicts(cells, clock)
    yield from _reasons(cells)


def _over(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, "same layers") for name in names if name in PRIVATE and "same layers" in names]


def _others(names: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [("same layers", "relu"), ("hooks", "optimal"), ("ghost", "optimal")]
    pairs += [("clip", "relu"), ("hooks", "clip"), ("ghost", "clip")]
    return [pair for pair in pairs if set(pair) <= set(names)]


def _milliseconds(clock: str) -> Any:
    return lambda row: f"{1e3 * statistics.median(row[clock]):.1f}"


def _mebibytes(row: Mapping[str, Any]) -> str:
    return f"{row['peak'] / MIB:.1f}"


def _certificates(row: Mapping[str, Any]) -> str:
    return f"{row['certificates']:.2f}"


def _table(title: str, cells: Cells, names: Sequence[str], text: Any) -> Iterator[str]:
    if not names:
        return
    yield title
    yield _line("", names, 12)
    for cell, rows in cells.items():
        texts = [text(rows[name]) if "peak" in rows.get(name, {}) else "-" for name in names]
        yield _line(cell, texts, 12)
    yield ""


def _ratios(title: str, cells: Cells, pairs: Sequence[tuple[str, str]], clock: str) -> Iterator[str]:
    if not pairs:
        return
    yield title
    yield _line("", [" / ".join(pair) for pair in pairs], 25)
    for cell in cells:
        found = [ratio(cells, cell, *pair, clock) for pair in pairs]
        texts = ["-" if it is None else f"{it.median:.2f}" if clock == "peak" else str(it) for it in found]
        yield _line(cell, texts, 25)
    yield ""


def _line(head: str, texts: Sequence[str], width: int) -> str:
    return f"{head:11}" + "".join(text.rjust(width) for text in texts)


def _verdicts(cells: Cells, clock: str) -> Iterator[str]:
    yield "targets, each by its worst case"
    for target in TARGETS:
        found = {pair: ratio(cells, *pair, "peak" if target.memory else clock) for pair in target.pairs()}
        known = {pair: it for pair, it in found.items() if it is not None}
        if not known:
            yield f"  not measured  {target}"
            continue
        worst = (min if target.least else max)(known, key=lambda pair: known[pair].median)
        median = known[worst].median
        met = median >= target.limit if target.least else median <= target.limit
        missing = f"; {len(found) - len(known)} of {len(found)} not measured" if len(known) < len(found) else ""
        cell, upper, lower = worst
        verdict = "MISSED" if not met else "met in part" if missing else "met"
        yield f"  {verdict:12}  {target}"
        yield f"                {known[worst]}: {upper} / {lower} at {cell}{missing}"
    yield ""


def _reasons(cells: Cells) -> Iterator[str]:
    for cell, rows in cells.items():
        for name, row in rows.items():
            if "left out" in row:
                yield f"{cell} {name}: {row['left out']}"
