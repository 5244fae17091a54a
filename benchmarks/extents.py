"""What each refinement of the abstract value buys: bounds of the whole gradient with it and without.

    python -m benchmarks.extents [--json FILE]

Columns are ratios to the bound as it is: without bounds of rows and entries (every rule sees the norm in their
place), without parts of one cotangent (branches that a merge joins count in full each), without disjoint slices
(forward and backward), and without any of them. The switches are here, not in the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.harness import EXAMPLES, options, save, written
from lipcompile import pipeline
from lipcompile.analysis import bounds
from lipcompile.analysis.disjoint_parts import PartwiseBound
from lipcompile.core.graph import Graph
from lipcompile.core.record import Extent
from lipcompile.frontends.options import ModelOptions
from lipcompile.numbers.certified import Certified

SEQUENCE = "input x: tensor[8, 16], norm <= 2\n"
VECTOR = "input x: tensor[16], norm <= 2\n"
# Beside the examples that fork: one model for each thing that the refinements are about.
MODELS = {
    "inception": """input x: tensor[3, 8, 8], norm <= 2
        repeat 2 {
            branch { conv2d(8, kernel=1) groupsort(2) } { conv2d(8, kernel=3, padding=1) groupsort(2) }
                { max_pool(3, stride=1, padding=1) conv2d(8, kernel=1) } -> concat
        }
        flatten dense(10)""",
    "dense blocks": VECTOR
    + """a = dense(8) b0 = groupsort(2) c1 = concat(x, b0) dense(8) b1 = groupsort(2) c2 = concat(c1, b1) dense(8)
        b2 = groupsort(2) concat(c2, b2) dense(10)""",
    "maxout": VECTOR + "repeat 3 { branch { dense(16) } { dense(16) } -> maximum } dense(10)",
    "blocks on halves": VECTOR
    + """repeat 3 { a, b = split(2) dense(a, 8) l = groupsort(2) dense(b, 8) r = groupsort(2) concat(l, r) }
        dense(10)""",
    "gated block": VECTOR
    + "repeat 2 { branch { dense(16) groupsort(2) } { dense(16) sigmoid } -> multiply } dense(10)",
    "siamese": VECTOR
    + 'a, b = split(x, 2) l = dense(a, 8, share="t") r = dense(b, 8, share="t") concat(l, r) dense(10)',
    "rnn": SEQUENCE + "rnn(8) dense(10)",
    "rnn, all states": SEQUENCE + "rnn(8, sequence=true) flatten dense(10)",
    "gru": SEQUENCE + "gru(8, constraint=spectral(0.5)) dense(10)",
    "lstm": SEQUENCE + "lstm(8, constraint=spectral(0.5)) dense(10)",
}


@contextmanager
def without_profile() -> Iterator[None]:
    """Rows and entries are known no better than the norm."""
    full = bounds._Forward._extent

    def norm_only(*arguments: Any) -> Any:
        norm = full(*arguments).norm
        return Extent(norm, norm, norm)

    with mock.patch.object(bounds._Forward, "_extent", norm_only):
        yield


@contextmanager
def without_parts() -> Iterator[None]:
    """Every operand of a merge may receive the whole cotangent."""
    with mock.patch.object(PartwiseBound, "part", lambda form, part: form):  # noqa: ARG005
        yield


@contextmanager
def without_slices() -> Iterator[None]:
    """No slices are known to be disjoint."""
    with mock.patch.object(bounds, "disjoint_slices", return_value=frozenset()):
        yield


SWITCHES = {"rows, entries": [without_profile], "parts": [without_parts], "slices": [without_slices]}
SWITCHES["such thing"] = [switch for switches in list(SWITCHES.values()) for switch in switches]


def total(graph: Graph) -> float:
    """Return the certified bound of the whole gradient."""
    return bounds.derive(graph, Certified()).total.upper


def row(graph: Graph) -> dict[str, float]:
    """Return the total, and the ratio to it without each refinement."""
    full = total(graph)
    found = {"total": full}
    for name, switches in SWITCHES.items():
        with ExitStack() as stack:
            for switch in switches:
                stack.enter_context(switch())
            found[name] = total(graph) / full
    return found


def graphs() -> Iterator[tuple[str, Graph]]:
    """Yield the examples that are more than a chain, and the models above."""
    examples = {path.stem: path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.lip"))}
    models = {name: f"model m {{ {body} loss cross_entropy }}" for name, body in MODELS.items()}
    for name, text in (examples | models).items():
        with written(text) as path:
            loaded = pipeline.load(str(path), ModelOptions())
        assert loaded.graph is not None, loaded.diagnostics
        if any(len(node.inputs) > 1 or node.op.reads for node in loaded.graph.nodes):
            yield name, loaded.graph


def shown(ratio: float) -> str:
    """Write a ratio."""
    return f"{ratio:.2f}" if ratio < 1e4 else f"{ratio:.1e}"


def main() -> None:
    """Derive and print."""
    arguments = options(__doc__, json=Path)
    table = {name: row(graph) for name, graph in graphs()}
    print(f"{'':18} {'bound':>8}  " + "".join(f"{f'no {name}':>18}" for name in SWITCHES))
    for name, found in table.items():
        print(f"{name:18} {found['total']:8.4g}  " + "".join(f"{shown(found[switch]):>18}" for switch in SWITCHES))
    save(arguments.json, table)


if __name__ == "__main__":
    main()
