"""CPU time and memory of `lipcompile check` on deep networks, and how both grow with the number of layers.

    python -m benchmarks.scale [--runs 3] [--sizes 1000 10000] [--only ONNX …] [--json FILE]

A chain has that many linear layers and as many activations; a network of residual blocks has half as many blocks,
each of three nodes or four. Every run is a process of its own, text and JSON output, sizes and models interleaved;
shown are medians of CPU seconds (user and system) and the largest memory. `grows` is the ratio of the times
of the larger and the smaller size, `without start` the same after the time of a network of one block is taken off.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import Cost, cost, options, save

WIDTH = 16
LIMIT_SECONDS, LIMIT_MEGABYTES, LIMIT_RATIO = 20, 1000, 13
# Networks this deep are read only if one says so.
BEYOND = ("--limit", "nodes=1000000", "--limit", "terms=100000000")


def lip(body: str) -> Callable[[Path, int], None]:
    """Return what writes a .lip model that repeats `body`."""

    def write(path: Path, count: int) -> None:
        head = f"model deep {{ input x: tensor[{WIDTH}], norm <= 1\n"
        path.write_text(f"{head} repeat {count} {{ {body} }}\n dense(10)\n loss cross_entropy }}\n")

    return write


def onnx(*, bias: bool = False, shared: bool = False, merge: str = "") -> Callable[[Path, int], None]:
    """Return what writes an ONNX model of `Gemm` and `Relu`, in residual blocks if their `merge` is given."""

    def write(path: Path, count: int) -> None:
        from onnx import TensorProto, helper, numpy_helper, save

        random = np.random.default_rng(0)
        weights, nodes, current = {}, [], "x"
        if merge == "mean":
            weights["half"] = np.array(0.5, np.float32)
        for i in range(count):
            place = 0 if shared else i
            operands = [f"layers.{place}.weight", *([f"layers.{place}.bias"] if bias else [])]
            for name, shape in zip(operands, ((WIDTH, WIDTH), (WIDTH,)), strict=False):
                if name not in weights:
                    weights[name] = (random.standard_normal(shape) / 8).astype(np.float32)
            nodes.append(helper.make_node("Gemm", [current, *operands], [f"h{i}"], f"/layers.{i}/Gemm", transB=1))
            nodes.append(helper.make_node("Relu", [f"h{i}"], [f"a{i}"], f"/layers.{i}/Relu"))
            before, current = current, f"a{i}"
            if merge:
                nodes.append(helper.make_node("Add", [before, current], [f"s{i}"], f"/layers.{i}/Add"))
                current = f"s{i}"
            if merge == "mean":
                nodes.append(helper.make_node("Mul", [current, "half"], [f"m{i}"], f"/layers.{i}/Mul"))
                current = f"m{i}"
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", WIDTH]) for name in ("x", current))
        stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
        graph = helper.make_graph(nodes, "deep", [x], [y], stored)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)

    return write


@dataclass(frozen=True)
class Kind:
    """Networks of one kind: what writes them, how their file ends, and how many blocks have a given size."""

    write: Callable[[Path, int], None]
    suffix: str
    per_size: float = 1.0


KINDS = {
    "dense, groupsort": Kind(lip("dense(16) groupsort(2)"), ".lip"),
    "dense with bias, groupsort": Kind(lip("dense(16, bias=0.5) groupsort(2)"), ".lip"),
    "residual add": Kind(lip("residual(add) { dense(16) groupsort(2) }"), ".lip", 0.5),
    "residual mean": Kind(lip("residual(mean) { dense(16) groupsort(2) }"), ".lip", 0.5),
    "ONNX: Gemm, Relu": Kind(onnx(), ".onnx"),
    "ONNX: Gemm with bias, Relu": Kind(onnx(bias=True), ".onnx"),
    "ONNX: one shared Gemm, Relu": Kind(onnx(bias=True, shared=True), ".onnx"),
    "ONNX: residual add": Kind(onnx(merge="add"), ".onnx", 0.5),
    "ONNX: residual mean": Kind(onnx(merge="mean"), ".onnx", 0.5),
}
FORMATS = ("text", "json")


def checked(model: Path, form: str) -> Cost:
    """Check a model in a process of its own."""
    given = ["--input-norm", "1", "--loss", "cross_entropy"] if model.suffix == ".onnx" else []
    return cost("-m", "lipcompile", "check", model, *given, *BEYOND, "--format", form)


def measured(
    folder: Path, kinds: dict[str, Kind], sizes: list[int], runs: int
) -> Iterator[tuple[str, int, str, Cost]]:
    """Write all models, and yield what each of the runs takes."""
    models = {}
    for number, (name, kind) in enumerate(kinds.items()):
        for size in sizes:
            models[name, size] = folder / f"kind_{number}_{size}{kind.suffix}"
            kind.write(models[name, size], max(1, int(size * kind.per_size)))
    for _ in range(runs):
        for (name, size), model in models.items():
            for form in FORMATS:
                yield name, size, form, checked(model, form)


def medians(costs: list[Cost]) -> Cost:
    """Return the median time and the largest memory."""
    wall, cpu = (statistics.median(getattr(one, clock) for one in costs) for clock in ("wall", "cpu"))
    return Cost(wall, cpu, max(one.megabytes for one in costs))


def row(name: str, form: str, start: Cost, small: Cost, large: Cost) -> str:
    """Return one line of the table."""
    grows = large.cpu / small.cpu
    bare = (large.cpu - start.cpu) / (small.cpu - start.cpu)
    within = large.cpu <= LIMIT_SECONDS and large.megabytes <= LIMIT_MEGABYTES and grows <= LIMIT_RATIO
    return (
        f"{name:28} {form:4} {small.cpu:6.2f} s {large.cpu:6.2f} s {large.megabytes:6.0f} MB"
        f" {grows:6.1f} {bare:14.1f}  {'' if within else 'beyond the limit'}"
    ).rstrip()


def main() -> None:
    """Measure and print."""
    arguments = options(__doc__, runs=3, sizes=[1000, 10000], only=[""], json=Path)
    small, large = arguments.sizes
    kinds = {name: kind for name, kind in KINDS.items() if any(part in name for part in arguments.only)}
    costs: dict[tuple[str, str, int], list[Cost]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, size, form, one in measured(Path(folder), kinds, [1, small, large], arguments.runs):
            costs.setdefault((name, form, size), []).append(one)
    found = {key: medians(ones) for key, ones in costs.items()}
    print(f"{'':33} {small:8} {large:8} {'memory':>9} {'grows':>6} {'without start':>14}")
    for name in kinds:
        for form in FORMATS:
            print(row(name, form, *(found[name, form, size] for size in (1, small, large))))
    entries = [{"model": m, "output": f, "size": n, **asdict(one)} for (m, f, n), one in found.items()]
    save(arguments.json, {"runs": arguments.runs, "medians": entries})


if __name__ == "__main__":
    main()
