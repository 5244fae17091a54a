"""What becomes of a presented model: equal to its reference, refused with a reason, or (a bug) unequal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lipcompile.core.backend import instantiate
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import Diagnostic, InputError, Severity
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import Loaded, ModelOptions, parse_loss
from lipcompile.limits import Limits
from lipcompile.pipeline import derive
from tests.onnx_backend.cases import Array, Case
from tests.onnx_backend.presenting import Presented, behind, presentations
from tests.onnx_backend.probing import exceeded

TOLERANCE = 1e-4
LARGEST = 2.0**64  # of data: squares of larger numbers are infinite in float32
COARSE = 2.0**-7  # of references in 16 bits: two units in the last place of bfloat16
# Of one reading: not even presented to the importer, refused by it, with random numbers of its own, or compared.
ABSENT, REFUSED, RANDOM, EQUAL, UNEQUAL = "absent", "refused", "random", "equal", "unequal"
EXCEEDED = "exceeded"  # equal, but with a larger gradient or slope than its bounds allow
WRONG = (UNEQUAL, EXCEEDED)
LIMITS = Limits(constants=2**32)  # the large networks compute their weights while they are imported
LIKELIEST = ("batch in front", "batch as axis 0", "batch as axis 1")
NOTHING = "no real or whole numbers that could be an example"


@dataclass(frozen=True, slots=True)
class Verdict:
    """kind: one of the above. how: the reading of the case. code, reason: of a refusal, or what differs."""

    kind: str
    how: str
    code: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one output of a case: a verdict for each reading of it."""

    name: str
    family: str
    ops: tuple[str, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def kind(self) -> str:
        """The worst of what was accepted; else `refused`, or `absent` where nothing was refused either."""
        found = {verdict.kind for verdict in self.verdicts}
        return next((kind for kind in (*WRONG, EQUAL, RANDOM, REFUSED) if kind in found), ABSENT)

    @property
    def deciding(self) -> Verdict:
        """The verdict that says why: that of the first choice of an example, with the likeliest batch."""
        found = [verdict for verdict in self.verdicts if verdict.kind == self.kind]
        if not found:
            return Verdict(ABSENT, "", "", NOTHING)
        first = found[0].how.partition(",")[0]
        same = [verdict for verdict in found if verdict.how.startswith(first)]
        return max(same, key=lambda verdict: [place in verdict.how for place in LIKELIEST])


def outcomes(case: Case, folder: Path) -> list[Outcome]:
    """Import and compare a case in every reading, each of its outputs by itself."""
    ops = tuple(sorted({node.op_type for node in case.model.graph.node}))
    several = len(case.outputs) > 1
    return [
        Outcome(
            f"{case.name}:{index}" if several else case.name,
            case.family,
            ops,
            tuple(verdict(presented, folder) for presented in presentations(case, index)),
        )
        for index in range(len(case.outputs))
    ]


def verdict(presented: Presented, folder: Path) -> Verdict:
    """Import one reading of a case and compare; a softmax at the end is given an operator behind it."""
    found = _verdict(presented, folder)
    return _verdict(behind(presented), folder) if found.code == "LIP214" else found


def _verdict(presented: Presented, folder: Path) -> Verdict:
    how, arrays = presented.how, [feed.astype(np.float64) for feed in presented.feeds]
    if not all((np.abs(array) < LARGEST).all() for array in arrays):
        return Verdict(
            ABSENT, how, "", "the data hold infinite numbers, NaN, or numbers whose squares are infinite"
        )
    longest = math.sqrt(max(sum(float((array[i] ** 2).sum()) for array in arrays) for i in range(len(arrays[0]))))
    norm = None if presented.tokens else Fraction(math.ceil(2 * longest + 1))
    options = ModelOptions(input_norm=norm, constraint="keep")
    path = folder / "model.onnx"
    path.write_bytes(presented.model.SerializeToString())
    try:
        with LIMITS.in_force():
            loaded = onnx_model.load(path, options)
    except InputError as error:
        return _refused(how, error.diagnostics)
    if loaded.graph is None:
        return _refused(how, loaded.diagnostics)
    return _compared(presented, loaded, options, folder)


def _refused(how: str, diagnostics: Sequence[Diagnostic]) -> Verdict:
    first = next(found for found in diagnostics if found.severity == Severity.ERROR)
    return Verdict(REFUSED, how, first.code, first.message)


def _compared(presented: Presented, loaded: Loaded, options: ModelOptions, folder: Path) -> Verdict:
    """Emit and run: the loss is whichever takes any shape, for it is not looked at."""
    assert loaded.graph is not None
    graph = replace(loaded.graph, loss=parse_loss("cosine:floor=1"))
    derivation = derive(replace(loaded, graph=graph), options)
    if not derivation.ok:
        return _refused(presented.how, derivation.diagnostics)
    module = instantiate(folder / "emitted.py", emit(derivation)).eval()
    wrong = weights_differ(module, graph) or _difference(presented, _run(module, presented, graph))
    if wrong and any(node.draws for node in graph.nodes):
        return Verdict(RANDOM, presented.how, "", "dropout in training mode draws numbers of its own")
    if wrong:
        return Verdict(UNEQUAL, presented.how, "", wrong)
    over = exceeded(module, torch.from_numpy(presented.feeds[0][0].astype(np.int64)) if presented.tokens else None)
    return Verdict(EXCEEDED if over else EQUAL, presented.how, "", over)


def weights_differ(module: Any, graph: Graph) -> str:
    """Return which parameter is not bit by bit what was imported, the empty string if none."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, parameter in graph.parameters.items():
        initial = parameter.initial
        if initial is not None and not np.array_equal(held[name].detach().numpy(), initial.astype(np.float32)):
            return f"the parameter {name} is not what was imported"
    return ""


def _run(module: Any, presented: Presented, graph: Graph) -> Array:
    if graph.input.tokens:
        (tokens,) = presented.feeds
        return np.asarray(module(torch.from_numpy(tokens.astype(np.int64))).detach().numpy())
    floats = [torch.from_numpy(np.ascontiguousarray(feed.astype(np.float32))) for feed in presented.feeds]
    x = floats[0] if len(floats) == 1 else torch.cat([feed.reshape(len(feed), -1) for feed in floats], 1)
    with torch.no_grad():
        return np.asarray(module(x).numpy())


def _difference(presented: Presented, found: Array) -> str:
    """Return how the result differs from the reference, the empty string if it does not."""
    expected = presented.expected.astype(np.float64)
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, expected {list(expected.shape)}"
    tolerance = COARSE if presented.coarse else TOLERANCE
    if np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return ""
    return f"differs by {np.nanmax(np.abs(found - expected)):.3g}"
