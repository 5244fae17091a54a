"""What is said of an export, and what the accepted ones are worth."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lipcompile_verify import Problem, verify
from lipcompile_verify.files import check_model, check_module

from lipcompile.certificates import certificate, encode
from lipcompile.core.backend import instantiate
from lipcompile.core.derivation import Derivation
from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.frontends.options import ModelOptions
from lipcompile.frontends.silence import silence_native
from lipcompile.pipeline import check
from tests.exports.architectures import ARCHITECTURES
from tests.exports.attack import Attained, attack
from tests.exports.exporting import Export

INPUT_NORM = Fraction(1)


@dataclass(frozen=True)
class Verdict:
    """codes: of all diagnostics. nodes: of the graph. bound: of the whole gradient, over L·max(1, X_0) `share`."""

    accepted: bool
    codes: tuple[str, ...]
    nodes: int = 0
    bound: float = math.nan
    share: float = math.nan


def options(name: str, *, keep: bool = True) -> ModelOptions:
    """Return what is said of a model on the command line; with `keep`, weights are bounded by what they are."""
    return ModelOptions(input_norm=INPUT_NORM, loss=ARCHITECTURES[name].loss, constraint="keep" if keep else None)


def derived(export: Export, path: Path, *, keep: bool = True) -> Derivation:
    """Check an exported file."""
    return check(str(path), options(export.name, keep=keep))


def verdict(derivation: Derivation) -> Verdict:
    """Summarise a derivation."""
    codes = tuple(sorted({found.code for found in derivation.diagnostics}))
    analysis = derivation.analysis
    if analysis is None:
        return Verdict(False, codes)
    total, loss = analysis.total.value, analysis.loss_lipschitz.value
    assert total is not None
    assert loss is not None
    unit = loss * max(1.0, float(INPUT_NORM))
    return Verdict(derivation.ok, codes, len(analysis.graph.nodes), total, total / unit)


def unverified(derivation: Derivation, path: Path) -> list[Problem]:
    """Return what the verifier says against the certificate of a file, the module that it becomes, or the file."""
    from lipcompile.emitters.torch.emit import emit

    document, module = json.loads(encode(certificate(derivation))), path.with_suffix(".py")
    module.write_text(emit(derivation), encoding="utf-8")
    return [*verify(document).problems, *check_module(module, document), *check_model(path, document)]


def errors(derivation: Derivation) -> list[Diagnostic]:
    """Return what a model is refused for."""
    return [found for found in derivation.diagnostics if found.severity == Severity.ERROR]


def emitted(derivation: Derivation) -> Any:
    """Return the emitted module, with the weights of the file."""
    from lipcompile.emitters.torch.emit import emit

    return instantiate(Path("emitted.py"), emit(derivation))


def difference(path: Path, module: Any, examples: int = 4) -> float:
    """Return the largest difference of the module and onnxruntime on random examples, over the largest output."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    with silence_native():
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    declared = session.get_inputs()[0]
    random, worst, largest = np.random.default_rng(0), 0.0, 1e-12
    size = declared.shape[0] if isinstance(declared.shape[0], int) else 3
    for _ in range(examples):
        x = random.standard_normal((size, *module.input_shape)).astype(np.float32)
        x *= module.input_norm / np.linalg.norm(x.reshape(size, -1), axis=1).max()
        (expected,) = session.run(None, {declared.name: x})
        with torch.no_grad():
            found = module.eval()(torch.from_numpy(x)).numpy()
        assert found.shape == expected.shape
        worst, largest = max(worst, np.abs(found - expected).max()), max(largest, np.abs(expected).max())
    return float(worst / largest)


def attained(derivation: Derivation, count: int = 12) -> Attained:
    """Attack the bounds of a derivation at the imported weights."""
    return attack(emitted(derivation), count)
