"""Tables of what was measured, as text, and a verdict on each target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .worker import MIB

Column = TypeVar("Column")
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
    private = [name for name in names if name in PRIVATE]
    over = [(name, "same layers") for name in private if "same layers" in names]
    pairs = [("same layers", "relu"), ("hooks", "optimal"), ("ghost", "optimal")]
    pairs += [("clip", "relu"), ("hooks", "clip"), ("ghost", "clip")]
    others = [pair for pair in pairs if set(pair) <= set(names)]

    def of_rows(title: str, shown: Sequence[str], text: Callable[[Mapping[str, Any]], str]) -> Iterator[str]:
        def entry(cell: str, name: str) -> str:
            return text(cells[cell][name]) if "peak" in cells[cell].get(name, {}) else "-"

        return _table(title, cells, {name: name for name in shown}, entry, 12)

    def ratios(title: str, shown: Sequence[tuple[str, str]], of: str) -> Iterator[str]:
        def entry(cell: str, pair: tuple[str, str]) -> str:
            found = ratio(cells, cell, *pair, of)
            return "-" if found is None else f"{found.median:.2f}" if of == "peak" else str(found)

        return _table(title, cells, {" / ".join(pair): pair for pair in shown}, entry, 25)

    title = f"milliseconds a step ({clock}, median of rounds)"
    yield from of_rows(title, names, lambda row: f"{1e3 * statistics.median(row[clock]):.1f}")
    title = "peak memory above the start of training, MiB"
    yield from of_rows(title, names, lambda row: f"{row['peak'] / MIB:.1f}")
    yield from of_rows("weights certified in full, a step", private, lambda row: f"{row['certificates']:.2f}")
    yield from ratios("times the step of the same layers without privacy", over, clock)
    yield from ratios("the same, of means: certificates count whenever they are", over, "mean")
    yield from ratios("times ours (optimal or clip), or ReLU", others, clock)
    yield from ratios("memory, times that of the same layers", over, "peak")
    yield from ratios("memory, clip", [pair for pair in others if "clip" in pair], "peak")
    yield from _verdicts(cells, clock)
    for cell, rows in cells.items():
        yield from (f"{cell} {name}: {row['left out']}" for name, row in rows.items() if "left out" in row)


def _table(
    title: str, cells: Cells, columns: Mapping[str, Column], entry: Callable[[str, Column], str], width: int
) -> Iterator[str]:
    """Yield a table of a row for each cell and a column for each head, if there are any."""
    if columns:
        yield title
        yield f"{'':11}" + "".join(head.rjust(width) for head in columns)
        for cell in cells:
            yield f"{cell:11}" + "".join(entry(cell, column).rjust(width) for column in columns.values())
        yield ""


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
