"""Whether a module is what its certificate says, and the certificate proves what it claims.

The certificate is checked by `lipcompile_verify`, which shares no code with the compiler, once a process for each
document. That the module's `forward` computes the certified graph is not looked at here: that takes the file, and
`lipcompile verify --module`.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from types import FunctionType
from typing import Any

from lipcompile_privacy.errors import CertificateError as CertificateError
from lipcompile_verify import Verdict, steepness, verify
from lipcompile_verify.derive import OUTWARD, features, head
from lipcompile_verify.document import MalformedError, canonical
from lipcompile_verify.emitted import Derived
from lipcompile_verify.files import derived
from lipcompile_verify.rules import OPS

from ..certify.constraints import Ball, Box, Constraint, Fixed, Free, Frobenius, Orthogonal, RowBalls, Spectral
from ..nn.constrained import constraints_of
from ..sharding import plain_type
from .module import LipschitzModule

# What may enforce a constraint of the certificate, at a radius that is not larger.
_ENFORCED_BY: Mapping[str, tuple[type[Constraint], ...]] = {
    "spectral": (Spectral, Orthogonal, Fixed),
    "orthogonal": (Spectral, Orthogonal, Fixed),
    "frobenius": (Frobenius, Ball),
    "ball": (Frobenius, Ball),
    "box": (Box,),
    "rows": (RowBalls,),
    "free": (Free,),
}
_HELP = "compile the model again, and do not edit the emitted file"


class UncertifiedWarning(UserWarning):
    """Gradient bounds rest on what nothing here can check."""


def certificate_of(module: LipschitzModule) -> dict[str, Any] | None:
    """Return the certificate of a module; None if it has none."""
    document: Any = getattr(type(module), "certificate", None)
    return dict(document) if isinstance(document, Mapping) and document else None


def graph_hash(document: Mapping[str, Any] | None) -> str | None:
    """Return the hash of the graph of a certificate, computed and not read; None of what has no graph."""
    try:
        return None if document is None else hashlib.sha256(canonical(document.get("graph"))).hexdigest()
    except MalformedError:
        return None


def check_certificate(module: LipschitzModule) -> None:
    """Refuse a module whose certificate does not verify, or does not cover the bounds that noise will rest on.

    A module without a certificate, written by hand, has bounds that its author vouches for: a warning says so. So
    it does of ops that users have registered: no verifier knows their rules.

    Formal guarantees: no gradient bound of the module is below one that the verifier derived for the graph of the
    certificate, whose parameters, constraints and domain are those of the module, or wider.

    Raises:
        CertificateError: it names the step or the attribute, and the fix.
    """
    document = certificate_of(module)
    if document is None:
        _warn(type(module), "has no certificate: its gradient bounds are not checked")
        return
    foreign = _foreign(document)
    if foreign:
        ops = ", ".join(foreign)
        _warn(
            type(module),
            f"uses rules for {ops} that the verifier does not know: its gradient bounds are not checked",
        )
    # What is planned is not what is run: the engine checks that itself.
    claimed = {key: part for key, part in document.items() if key != "training"}
    refuse_unverified(claimed, CertificateError, "the certificate of the module")
    try:
        found = next(_differences(module, document, proved=not foreign), None)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CertificateError(f"the certificate of the module is damaged ({error!r}): {_HELP}") from None
    if found is not None:
        raise CertificateError(f"the module does not match its certificate: {found}; {_HELP}")


def _foreign(document: Mapping[str, Any]) -> list[str]:
    """Return the ops of plug-ins that nodes use: none that the verifier knows, or that is only said to be one."""
    try:
        said = set(document.get("user_ops", []))
        used = {node["op"] for node in document["graph"]["nodes"]} if said else set()
    except (LookupError, TypeError):
        return []  # it is no certificate, which the verifier will say
    return sorted(used & said - OPS.keys())


def refuse_unverified(document: Mapping[str, Any] | None, error: type[RuntimeError], what: str) -> None:
    """Raise an error, which names the step, unless a certificate verifies; none, or one of user ops, is passed."""
    if document is None or _foreign(document):
        return
    try:
        verdict = _verdict(canonical(document))
    except (TypeError, ValueError) as damage:
        raise error(f"{what} is damaged ({damage!r}): {_HELP}") from None
    if not verdict.ok:
        first, more = verdict.problems[0], len(verdict.problems) - 1
        others = f", and {more} more" if more else ""
        raise error(f"{what} does not verify: {first}{others}; {_HELP}")


def derived_slope(module: LipschitzModule, norms: Mapping[str, float]) -> float:
    """Return what the verifier derives in place of `module.slope`, at norms of the weights by name; 0 for a module
    without a certificate, or with ops of users.

    Raises:
        CertificateError: the certificate is damaged.
    """
    document = certificate_of(module)
    if document is None or _foreign(document):
        return 0.0
    try:
        return steepness(document, norms)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise CertificateError(f"the certificate of the module is damaged ({error!r}): {_HELP}") from None


@lru_cache(maxsize=64)
def _verdict(document: bytes) -> Verdict:
    return verify(json.loads(document))


def _warn(module: type[LipschitzModule], what: str) -> None:
    warnings.warn(f"{module.__name__} {what}", UncertifiedWarning, stacklevel=5)


# What a module has in the place of what its certificate says


def _differences(module: LipschitzModule, document: Mapping[str, Any], proved: bool) -> Iterator[str]:
    graph, steps = document["graph"], document["steps"]
    yield from _alterations(module)
    yield from _domain(module, graph["input"])
    yield from _parameters(module, graph["parameters"])
    yield from _clips(module, graph.get("clips", []))
    yield from _bounds(module, steps, document["totals"])
    if proved and module.features_shape is not None:
        yield from _features(module, document)


def _clips(module: LipschitzModule, certified: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield groups of clips that are not the certified ones, or wider, or scale gradients by another rule."""
    claimed = {tuple(group["parameters"]): group for group in certified}
    own = {tuple(group.parameters): group for group in module.clips}
    if claimed.keys() != own.keys():
        yield "its clip groups contain other parameters than the certified ones"
        return
    for names, group in own.items():
        length, regulariser = claimed[names]["length"], claimed[names]["regulariser"]
        if group.length > Fraction(length):
            yield f"the clip group of {names[0]} has length {group.length!r}, certified {length}"
        rule = None if regulariser is None else float(Fraction(regulariser))
        if group.regulariser != rule:
            yield f"the clip group of {names[0]} has {_rule(group.regulariser)}, certified {_rule(rule)}"


def _rule(regulariser: float | None) -> str:
    return "a fixed length" if regulariser is None else f"the automatic rule with {regulariser!r}"


def _alterations(module: LipschitzModule) -> Iterator[str]:
    """Yield code that is not the emitted class's: of a class derived from it, or put there once it was made."""
    kind = plain_type(module)
    if "certificate" not in vars(kind):
        yield f"its class {kind.__name__} is a subclass of the certified class"
    for name, value in vars(kind).items():
        method = isinstance(value, FunctionType) or callable(getattr(LipschitzModule, name, None))
        # `exec` in a namespace without a name says None of functions, and of classes what it finds in builtins.
        found = getattr(value, "__module__", None) or builtins.__name__, getattr(value, "__qualname__", None)
        if method and found != (kind.__module__, f"{kind.__qualname__}.{name}"):
            yield f"{name} of {kind.__name__} was replaced after the class was defined"
    for path, part in module.named_modules():
        hidden = sorted(name for name in vars(part) if name[0] != "_" and hasattr(type(part), name))
        if hidden:
            yield f"{', '.join(hidden)} of {path or 'the module'} overrides the attributes of its class"


def _domain(module: LipschitzModule, source: Mapping[str, Any]) -> Iterator[str]:
    if tuple(module.input_shape) != tuple(source["shape"]):
        yield f"input_shape is {tuple(module.input_shape)}, certified {tuple(source['shape'])}"
    if module.input_tokens != source["tokens"]:
        yield f"input_tokens is {module.input_tokens}, certified {source['tokens']}"
    elif source["norm"] is not None and not module.input_norm <= Fraction(source["norm"]):
        yield f"input_norm is {module.input_norm}, certified {source['norm']}"
    if module.input_trusted and not source["trusted"]:
        yield "input_trusted is set, so examples are not clipped; the certified model clips them"


def _parameters(module: LipschitzModule, certified: Mapping[str, Any]) -> Iterator[str]:
    present = dict(module.named_parameters())
    if present.keys() != certified.keys():
        yield f"its parameters differ in {', '.join(sorted(present.keys() ^ certified.keys()))}"
        return
    enforced = constraints_of(module)
    for name, parameter in present.items():
        claimed = certified[name]
        if list(parameter.shape) != claimed["shape"]:
            yield f"{name} has shape {list(parameter.shape)}, certified {claimed['shape']}"
        if parameter.requires_grad and not claimed["trainable"]:
            yield f"{name} is trained, certified as frozen"
        own, kind = enforced[name][0] if name in enforced else None, claimed["constraint"]
        if own is None or not isinstance(own, _ENFORCED_BY[kind]):
            yield f"{name} is kept by {own}, certified {kind}"
        elif claimed["bound"] is not None and own.bound > Fraction(claimed["bound"]):
            yield f"{name} may have norm {own.bound}, certified {claimed['bound']}"


def _bounds(module: LipschitzModule, steps: Mapping[str, Any], totals: Mapping[str, str]) -> Iterator[str]:
    claims = {claim["name"]: claim for claim in steps["parameters"]}
    loss = float.fromhex(steps["loss"]["lipschitz"])
    if module.bounds.keys() != claims.keys():
        yield f"bounds differ in {', '.join(sorted(module.bounds.keys() ^ claims.keys()))}"
        return
    if not module.loss_lipschitz >= loss:
        yield f"loss_lipschitz is {module.loss_lipschitz!r}, certified {loss!r}"
    if not module.lipschitz >= float.fromhex(totals["lipschitz"]):
        yield f"lipschitz is {module.lipschitz!r}, certified {float.fromhex(totals['lipschitz'])!r}"
    for name, claim in claims.items():
        bound, unclipped = float.fromhex(claim["gradient"]), float.fromhex(claim["unclipped"])
        if not module.bounds[name] >= bound:
            yield f"the bound of {name} is {module.bounds[name]!r}, certified {bound!r}"
        if module.unclipped_bounds is None or name in module.clipped_parameters:
            continue
        # What a clip of the loss's gradient leaves is C/L of it: too large an L makes it too small.
        own = module.unclipped_bounds[name]
        if not (own >= unclipped and _share(own, module.loss_lipschitz) >= _share(unclipped, loss)):
            at = f"{own!r} at L = {module.loss_lipschitz!r}, certified {unclipped!r} at L = {loss!r}"
            yield f"the unclipped bound of {name} is {at}"


def _features(module: LipschitzModule, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield bounds that are not proved for features of the norm that the module clips them to."""
    graph = document["graph"]
    found = features(graph)
    if found is None or tuple(module.features_shape or ()) != tuple(_shape(graph, found[0])):
        yield f"features_shape is {module.features_shape}, and the certified graph has no such features"
        return
    if not 0 < module.features_norm < math.inf:
        yield f"features_norm is {module.features_norm!r}"
        return
    least = _derived_at(canonical(document), module.features_norm)
    if not module.loss_lipschitz >= least.loss:
        yield _beyond(module, "loss_lipschitz")
    for name in least.gradient:
        if not module.bounds[name] >= least.gradient[name]:
            yield _beyond(module, f"the bound of {name}")
        if module.unclipped_bounds is None or name in module.clipped_parameters:
            continue
        own, unclipped = module.unclipped_bounds[name], least.unclipped[name]
        share = _share(own, module.loss_lipschitz, OUTWARD)
        if not (own >= unclipped and share >= _share(unclipped, least.loss)):
            yield _beyond(module, f"the unclipped bound of {name}")


def _beyond(module: LipschitzModule, what: str) -> str:
    return f"features_norm is {module.features_norm!r}, for which {what} is not proved"


def _shape(graph: Mapping[str, Any], value: str) -> list[int]:
    return next(node["shape"] for node in graph["nodes"] if node["name"] == value)


@lru_cache(maxsize=64)
def _derived_at(document: bytes, norm: float) -> Derived:
    """Derive the bounds of what reads features of this norm."""
    parsed = json.loads(document)
    feature, fixed = features(parsed["graph"]) or ("", [])
    return derived(parsed, head(parsed["graph"], feature, fixed, norm))


def _share(bound: Fraction | float, loss: Fraction | float, factor: Fraction = Fraction(1)) -> Fraction | float:
    if bound == math.inf:  # of what only a clip of gradients inside bounds
        return math.inf
    return Fraction(bound) * factor / Fraction(loss) if loss else Fraction(0)
