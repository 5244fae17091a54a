"""Export for deployment: a trained module becomes one ONNX file, with its certificate and what its training spent.

The graph is that of the certificate which the module carries, and the weights are the module's. The file is
compared with the module before it takes its place.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcompile_privacy.accounting import Accountant
from lipcompile_privacy.errors import BudgetError
from lipcompile_privacy.ledger import LedgerRecord, read_ledger

from lipcompile.analysis.bounds import slope
from lipcompile.analysis.tokens import vocabulary
from lipcompile.certificates import SCHEMA, encode
from lipcompile.certificates.read import document_of, graph_of
from lipcompile.core.backend import Backend, find
from lipcompile.core.graph import Graph
from lipcompile.core.record import Vocabulary
from lipcompile.diagnostics import input_error
from lipcompile.frontends import files
from lipcompile.frontends.options import OriginalError
from lipcompile.numbers.certified import Certified

if TYPE_CHECKING:
    from onnx import ModelProto

ACCOUNTANTS: tuple[Accountant, ...] = ("pld", "rdp")
_FOREIGN = "give the module that `lipcompile compile` emitted, unchanged"


@dataclass(frozen=True, slots=True)
class Spent:
    """What a training has spent, as its ledger says: (ε, δ) under a neighbouring relation, by an accountant.

    head: hash of the last line of the ledger.
    """

    epsilon: float
    delta: float
    relation: str
    accountant: str
    head: str


@dataclass(frozen=True, slots=True)
class Lipschitz:
    """Certified Lipschitz constants of the output in the input: for all weights in Θ, and for these weights."""

    declared: float
    of_weights: float


@dataclass(frozen=True, slots=True)
class Export:
    """What was written, if it was kept.

    agreement: how far the file is from the module, as onnxruntime computes it. certified: whether the weights are
    certified to lie in Θ. lipschitz: None without that, or if it is not finite.
    notes: what the file does not say, and why.
    """

    graph: Graph
    certified: bool
    lipschitz: Lipschitz | None
    spent: Spent | None
    agreement: Any
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the file computes what the module does, and was kept."""
        agrees: bool = self.agreement.agrees
        return agrees


def export_onnx(
    module: Any,
    path: str | os.PathLike[str],
    *,
    ledger: Any = None,
    delta: float | None = None,
    accountant: Accountant | None = None,
) -> Export:
    """Write a trained module as an ONNX file that runs in onnxruntime, checked against the module.

    The file maps [B, *input_shape] in float32 to the output, for any B, as `forward` does in evaluation mode: it
    clips its input. Its metadata hold the certificate, and what of (ε, δ) and Lipschitz constants is known.

    Args:
        module: of an emitted file, trained. It is not changed.
        path: of the file. It is left as it was if the new one computes something else.
        ledger: `LedgerRecord` or path of what the training has spent; without it the file says nothing of privacy.
        delta: at which ε is stated; by default that of the training, or a tenth of one over the number of examples
            where the ledger does not say it.
        accountant: "pld" or "rdp"; by default whichever gives the smaller ε.

    Raises:
        InputError: the module carries no certificate, or not that of its parameters (LIP520, LIP521); an op has no
            ONNX operators (LIP017); onnxruntime does not take the file (LIP521); a ledger without a finite ε
            (LIP405), or a δ that is none (LIP401).
        ValueError, RuntimeError: a module that does something else than what was compiled, or whose certificate
            does not verify.
        OSError: the file cannot be written.

    Returns:
        What the file says, and how far it is from the module: `ok` says whether it was kept.

    Examples:
        >>> import lipcompile, torch
        >>> module = lipcompile.private(torch.nn.Linear(4, 2), [4])
        >>> lipcompile.export_onnx(module, "model.onnx").ok
        True
    """
    from lipcompile.emitters.onnx.emit import save, to_onnx

    backend = find()
    document = document_in(module)
    graph = graph_of(document)
    if module.input_trusted != graph.input.trusted:
        raise input_error("LIP521", "the input of the module is not that of its certificate", _FOREIGN)
    single = backend.deployment.in_single_precision(module)
    norms = backend.deployment.norms_in_sets(single)
    lipschitz = None if norms is None else _lipschitz(graph, norms, float.fromhex(document["totals"]["lipschitz"]))
    spent, notes = _spent(ledger, delta, accountant)
    notes = (*notes, *_unsaid(graph, norms, lipschitz))
    metadata = {
        "lipcompile.certificate": encode(document).decode(),
        "lipcompile.graph_sha256": document["graph_sha256"],
        **_of_weights(norms, lipschitz),
        **_of_privacy(spent),
    }
    model = to_onnx(graph, backend.deployment.weights_of(single), clip_input=True, metadata=metadata)
    with files.beside(Path(path), ".data") as temporary:
        save(model, temporary)
        if temporary.with_name(f"{temporary.name}.data").exists():
            raise input_error("LIP521", "a model of more than 2 GiB cannot be one file")
        found = _agreement(single, temporary, model, vocabulary(graph), backend)
        if found.agrees:
            temporary.replace(path)
    return Export(graph, norms is not None, lipschitz, spent, found, notes)


# The module


def document_in(module: Any) -> Mapping[str, Any]:
    """Return the certificate that a module carries; raises InputError (LIP520, LIP521)."""
    certificate = getattr(module, "certificate", None)
    if not isinstance(certificate, Mapping) or certificate.get("schema") != SCHEMA:
        message = "the module carries no certificate of its graph"
        raise input_error("LIP521", message, "emit it again: lipcompile compile MODEL -o FILE.py")
    return document_of(encode(certificate).decode())


def _lipschitz(graph: Graph, norms: Mapping[str, float], declared: float) -> Lipschitz | None:
    """Return the certified constants, given that of the certificate; the rules are monotone, so both hold."""
    if graph.input.tokens:
        return None
    num = Certified()
    current = {name: num.of(Fraction(norm)) for name, norm in norms.items()}
    of_weights = slope(graph, num, current, graph.output).upper
    found = Lipschitz(declared, min(declared, of_weights))
    return found if math.isfinite(found.of_weights) else None


# Privacy


def _spent(
    ledger: LedgerRecord | str | os.PathLike[str] | None, delta: float | None, accountant: Accountant | None
) -> tuple[Spent | None, tuple[str, ...]]:
    if ledger is None:
        if delta is not None or accountant is not None:
            raise input_error("LIP405", "δ and an accountant need a ledger", "say what was spent: --ledger FILE")
        return None, ("it says nothing of privacy: no ledger was given",)
    record = ledger if isinstance(ledger, LedgerRecord) else read_ledger(ledger)
    if record.seeded:
        return None, ("it states no ε: a seed was fixed, so the noise is predictable",)
    chosen = delta_of(delta, record)
    names = ACCOUNTANTS if accountant is None else (accountant,)
    found = {name: epsilon for name in names if (epsilon := _epsilon(record, chosen, name)) is not None}
    if not found:
        raise input_error("LIP405", "no accountant has a finite ε for what the ledger charges at this δ")
    best = min(found, key=lambda name: found[name])
    return Spent(found[best], chosen, record.relation.value, best, record.hashes[-1]), ()


def _epsilon(record: LedgerRecord, delta: float, accountant: Accountant) -> float | None:
    """Return ε, None where an accountant has no analysis, or no room for so little noise."""
    try:
        epsilon = record.epsilon(delta, accountant)
    except (BudgetError, ArithmeticError, MemoryError, ValueError):
        return None
    return epsilon if math.isfinite(epsilon) else None


def delta_of(given: float | None, record: Any) -> float:
    """Return δ, by default that of the training, or a tenth of one over the number of examples where the ledger
    does not say it; raises InputError (LIP401).
    """
    if given is None:
        return float(record.delta or f"{0.1 / max(1, record.dataset_size):.1g}")
    if not 0 < given < 1:
        raise input_error("LIP401", f"δ = {given:g} is not strictly between 0 and 1", "use --delta 1e-5")
    return given


# What the file says


def _of_weights(norms: Mapping[str, float] | None, lipschitz: Lipschitz | None) -> dict[str, str]:
    if norms is None:
        return {}
    found = {"lipcompile.weights": "certified"}
    if lipschitz is not None:
        if math.isfinite(lipschitz.declared):
            found["lipcompile.lipschitz"] = _decimal(lipschitz.declared)
        found["lipcompile.lipschitz_of_weights"] = _decimal(lipschitz.of_weights)
    return found


def _of_privacy(spent: Spent | None) -> dict[str, str]:
    if spent is None:
        return {}
    return {
        "lipcompile.epsilon": _decimal(spent.epsilon),
        "lipcompile.delta": repr(spent.delta),
        "lipcompile.neighbouring_relation": spent.relation,
        "lipcompile.accountant": spent.accountant,
        "lipcompile.ledger_head": spent.head,
    }


def _decimal(bound: float) -> str:
    """Return a decimal that is not below a double, and that is read as this very double."""
    return str(Context(prec=17, rounding=ROUND_CEILING).create_decimal_from_float(bound))


def _unsaid(graph: Graph, norms: object, lipschitz: object) -> Iterator[str]:
    if norms is None:
        yield "it states no Lipschitz constant: the weights are not certified to lie in their sets"
    elif lipschitz is None:
        yield "it states no Lipschitz constant: the output has none that is finite in the input"
    if graph.input.trusted and graph.input.norm is not None:
        yield "it does not clip its input, which the model trusts to be within its norm"


def _agreement(module: Any, path: Path, model: ModelProto, tokens: Vocabulary | None, backend: Backend) -> Any:
    """Compare the file with the module: as it is written, and as onnxruntime rewrites it."""
    from lipcompile.frontends.onnx.file.session import on_processor

    try:
        found = [
            backend.deployment.agreement_with_file(module, on_processor(path, model, optimised=optimised), tokens)
            for optimised in (False, True)
        ]
    except OriginalError as error:
        raise input_error("LIP521", f"the file does not run: {error}") from None
    return max(found, key=lambda one: one.excess)
