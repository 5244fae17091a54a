"""Single changes of certificates, and what the compiler says of the model that a changed graph is."""

from __future__ import annotations

from copy import copy
from fractions import Fraction
from hashlib import sha256
from math import inf
from random import Random
from typing import Any, Literal

from lipcompile_verify.document import canonical

from lipcompile.certificates.read import graph_of
from lipcompile.diagnostics import InputError
from lipcompile.ops.table import LOSSES, OPS

from .models import document

Json = dict[str, Any]
Place = tuple[Any, ...]
# The one constant that others are divided by: a larger one needs larger bounds without clips.
LOSS_CLAIM: Place = ("steps", "loss", "lipschitz")
WORDS = [op.name for op in OPS] + [loss.name for loss in LOSSES]
WORDS += ["spectral", "orthogonal", "frobenius", "ball", "box", "rows", "free", "mean", "sum", "zeros", "circular"]
WORDS += ["reflect", "replicate", "nearest", "bilinear", "bicubic", "none", "tanh"]
ROUGH = 2e-9
FACTORS = [Fraction(9, 10), Fraction(11, 10), 1 - Fraction(1, 10**6), Fraction(2), Fraction(-1), Fraction(0)]


def inside(value: Any, way: Place = ()) -> list[Place]:
    """Return the way to every value inside a document, itself among them."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(place for key, part in parts for place in inside(part, (*way, key)))]


def places(value: Any) -> list[Place]:
    """Return the way to every leaf of a document."""
    return [place for place in inside(value) if not isinstance(at(value, place), dict | list)]


def at(value: Any, place: Place) -> Any:
    """Return what stands there."""
    for key in place:
        value = value[key]
    return value


def put(value: Any, place: Place, new: Any) -> Any:
    """Return the document with something else there: a copy along the way, the rest is shared."""
    if not place:
        return new
    changed = copy(value)
    changed[place[0]] = put(value[place[0]], place[1:], new)
    return changed


def other(rng: Random, old: Any, names: list[str]) -> Any:
    """Return something of the same kind."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice([old + 1, old - 1, old * 2, old // 2, 0, 1, rng.randint(0, 9)])
    if old is None:
        return rng.choice([0, 1, "1", "1/2"])
    if is_bound(old):
        return bound(rng, old)
    try:
        number = Fraction(old)
    except ValueError:
        return rng.choice(names + WORDS)
    return str(number * rng.choice(FACTORS))


def bound(rng: Random, old: str) -> str:
    """Return a larger or a smaller bound, by much or by little."""
    number = float.fromhex(old)
    if number == inf:
        return rng.choice(["0x1.0000000000000p+0", (1e300).hex()])
    factor = 1 + rng.choice([-1, 1]) * rng.choice([1e-8, 1e-5, 0.01, 0.3, 0.99])
    return (number * factor).hex() if rng.random() < 0.9 else rng.choice(["inf", (0.0).hex()])


def changed(rng: Random, certificate: Json) -> tuple[Place, Json]:
    """Return a certificate with one leaf changed: of its graph in half of all cases, else of what is claimed."""
    part = rng.choice([("graph",), ("steps",), ("steps",), ("graph",), ("totals",)])
    place = (*part, *rng.choice(places(at(certificate, part))))
    if place[-1] == "proof":
        return changed(rng, certificate)
    names = [node["name"] for node in certificate["graph"]["nodes"]] + [*certificate["graph"]["parameters"]]
    new = other(rng, at(certificate, place), names)
    if new == at(certificate, place):
        return changed(rng, certificate)
    return place, put(certificate, place, new)


def rehashed(certificate: Json) -> Json:
    """Return the certificate with the hash of its graph."""
    return certificate | {"graph_sha256": sha256(canonical(certificate["graph"])).hexdigest()}


def expected(certificate: Json) -> Literal["refused", "accepted", "either"]:
    """Say what must become of a certificate: claims below those of the compiler for its graph are refused.

    "either" where a claim is so near the compiler's that it depends on rounding.
    """
    try:
        true = document(graph_of(certificate))
    except InputError:
        return "refused"
    if {*places(certificate)} != {*places(true)}:
        return "refused"
    near = False
    for place in places(certificate):
        claimed, own = at(certificate, place), at(true, place)
        if place[0] not in ("steps", "totals") or claimed == own:
            continue
        if is_bound(own) and is_bound(claimed):
            if float.fromhex(claimed) < float.fromhex(own) * (1 - ROUGH):
                return "refused"
            near = near or float.fromhex(claimed) < float.fromhex(own)
        elif "squared_gain" in place:  # which is a bound as well, and may be larger
            near = True
        else:
            return "refused"
    return "either" if near else "accepted"


def is_bound(value: Any) -> bool:
    """Whether this is a bound, as certificates write it."""
    return isinstance(value, str) and (value.startswith("0x") or value == "inf")
