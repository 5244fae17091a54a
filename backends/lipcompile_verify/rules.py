"""The rules of bounds.md, section 3: a row for each op, with its attributes, shape, output bounds, and slopes.

`s` is one use of an op: its attributes by name, the shapes I of its operands and O of its output, N entries of it,
D of them in a row (along the last axis), theta T by role, counts C. An operand has a norm X, rows of at most R and
entries of at most M. If a rule gives no bound of rows, it is X; if none of entries, it is R.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction as Q
from itertools import repeat
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

from .disjoint_parts import hypotenuse
from .document import MOST_NODES, of_kind, require, spend
from .intervals import UNBOUNDED, Exact, Real, decay, least, log, most, power, real, rise, root, total
from .scattering import energy, padding
from .windows import Row, adaptive, averages, counts, interpolation, joint, norm_within, outputs, padded

Shape = tuple[int, ...]
Bounds = Sequence[Real | Exact]
LINEAR, MODES = "spectral|orthogonal|frobenius", "zeros|circular|reflect|replicate"
READS = {  # the ops and losses for which rows and entries are derived
    *("gelu", "silu", "mish", "hard_swish", "prelu", "scale", "householder", "multiply", "softmax", "log_softmax"),
    *("matmul", "attention", "dot_product_attention", "token_cross_entropy", "multilabel_bce"),
}


class Extent(NamedTuple):
    """Bounds of a tensor."""

    X: Real
    R: Real
    M: Real


class Role(NamedTuple):
    """A parameter of an op: its shape, the kinds of constraint that it may have, and κ."""

    shape: Callable[[Any], Shape]
    kinds: str
    kappa: Callable[[Any, Sequence[Extent]], Real]
    optional: bool = False


OF_ANY_SIZE = ("bias", "conv", "conv_transpose", "dense", "dense_transpose", "embedding", "prelu", "scale")
"""Ops whose layer, if it has no constraint, may read inputs of several sizes."""
MATRICES = {"dense": "weight", "dense_transpose": "weight", "embedding": "table"}
"""Roles of plain matrices: layers of reals may use the one of another node as well."""

NO_ROLES: dict[str, Role] = {}


class Op(NamedTuple):
    """A row. Without slopes an op jumps; `conditions` returns what those must be, given what is claimed."""

    attributes: str
    shape: Callable[[Any], Shape]
    extent: Callable[[Any, Sequence[Extent]], Bounds]
    slopes: Callable[[Any, Sequence[Extent]], Bounds] | None
    roles: dict[str, Role] = NO_ROLES
    conditions: Callable[[Any, Mapping[str, Any]], dict[str, Any]] = lambda s, claimed: {}
    operands: tuple[int, int] = (1, 1)
    parts: bool = False


def ok(value: Any, *conditions: object) -> Any:
    """Return the value if the conditions hold."""
    require(all(conditions), "the attributes do not fit the shapes of the operands")
    return value


def scaling(
    attributes: str, shape: Callable[[Any], Shape], gains: Callable[[Any, Any], Bounds], **more: Any
) -> Op:
    """Return the row of an op that enlarges norm, rows and entries by these factors, the first being its slope."""
    grown = lambda s, x: [factor * bound for factor, bound in zip(gains(s, x), x[0], strict=False)]
    return Op(attributes, shape, grown, lambda s, x: gains(s, x)[:1], **more)


def along(s: Any) -> Any:
    """The size of the operand along the axis."""
    return ok(s.I[0], s.axis >= 0)[s.axis]


def last(s: Any) -> bool:
    """Whether the axis is the last, along which rows lie."""
    return bool(s.axis == len(s.I[0]) - 1)


def instead(s: Any, *sizes: int, shape: Any = None) -> Any:
    """The shape with other sizes along the axis."""
    shape = shape or s.I[0]
    return (*shape[: s.axis], *sizes, *shape[s.axis + 1 :])


def kept(dropped: Q) -> Any:
    """1/(1 - p)."""
    return 1 / ok(1 - dropped, dropped < 1)


def _fates(s: Any, m: Any) -> Any:
    return ok(kept(s.probability), 0 <= s.axes <= len(s.I[0]))


def _one(s: Any, x: Any) -> Bounds:
    return [1]


def _ones(s: Any, x: Any) -> Bounds:
    return [1] * len(x)


# Elementwise: attributes, Lipschitz constant, bound of n entries of norm v (where it is not the constant times v).

LAMBDA, ALPHA = Q("1.0507009873554804934193349852946"), Q("1.6732632423543772848170429916717")


GELU = {"none": Q("1.1289042"), "tanh": Q("1.1289931")}


def _gelu(s: Any, v: Real, n: int, m: Real) -> Real:
    if s.approximate == "none":  # Pólya
        return v * (1 + root(rise(m * m * Q("0.6366198")))) / 2
    return v / (1 + decay((m + m * m * m * Q("0.044715")) * Q("1.5957692")))


def _mish(s: Any, v: Real, n: int, m: Real) -> Real:
    return v / (1 + decay(m) * decay(m) * 2 / (1 + decay(m) * 2))


def _selu(s: Any, v: Real, n: int, m: Real) -> Real:
    alone = most(v * LAMBDA, rise(v) * (LAMBDA * ALPHA))
    return alone if n == 1 else least(v * (LAMBDA * ALPHA), root(v * v + Q("0.2195457") * n) * LAMBDA)


def _cut(s: Any, v: Real, n: int, m: Real) -> Real:
    far, near = max(abs(s.low), abs(s.high)), ok(max(0, s.low, -s.high), s.low <= s.high)
    return least(root(most(v * v, near**2) + (n - 1) * near**2), root(n * far**2))


# fmt: off
ELEMENTWISE: dict[str, tuple[str, Any, Any]] = {
    "relu": ("", lambda s, m: 1, None),
    "abs": ("", lambda s, m: 1, None),
    "identity": ("", lambda s, m: 1, None),
    "leaky_relu": ("slope:q", lambda s, m: max(1, abs(s.slope)), None),
    "elu": ("alpha:q", lambda s, m: max(1, abs(s.alpha)), None),
    "celu": ("alpha:q+", lambda s, m: 1, None),
    "selu": ("", lambda s, m: LAMBDA * ALPHA, _selu),
    "tanh": ("", lambda s, m: 1, lambda s, v, n, m: least(v, root(n))),
    "sin": ("", lambda s, m: 1, lambda s, v, n, m: least(v, root(n))),
    "cos": ("", lambda s, m: 1, lambda s, v, n, m: root(n)),
    "atan": ("", lambda s, m: 1, lambda s, v, n, m: least(v, Q("1.5707964") * root(n))),
    "asinh": ("", lambda s, m: 1, None),
    "erf": ("", lambda s, m: Q("1.1283792"), lambda s, v, n, m: least(Q("1.1283792") * v, root(n))),
    "sigmoid": ("", lambda s, m: Q(1, 4), lambda s, v, n, m: least(v / 4 + root(Q(n, 4)), root(n))),
    "hard_sigmoid": ("slope:q offset:q0", lambda s, m: ok(abs(s.slope), s.offset <= 1),
                     lambda s, v, n, m: least(v * abs(s.slope) + root(n * s.offset**2), root(n))),
    "softplus": ("", lambda s, m: 1, lambda s, v, n, m: v + root(n) * log(2)),
    "softsign": ("", lambda s, m: 1, lambda s, v, n, m: least(root(n), root(n) * v / (root(n) + v))),
    "hard_swish": ("", lambda s, m: least(Q(3, 2), Q(1, 2) + m / 3), lambda s, v, n, m: v * least(1, (m + 3) / 6)),
    "gelu": ("approximate:none|tanh", lambda s, m: GELU[s.approximate], _gelu),
    "silu": ("", lambda s, m: Q("1.0998394"), lambda s, v, n, m: v / (1 + decay(m))),
    "mish": ("", lambda s, m: Q("1.0884982"), _mish),
    "hardtanh": ("low:q high:q", lambda s, m: 1, _cut),
    "sign": ("", None, lambda s, v, n, m: root(n)),
    "hard_shrink": ("threshold:q0", None, lambda s, v, n, m: v),
    "clip_norm": ("radius:q+", lambda s, m: 1, lambda s, v, n, m: least(v, s.radius)),
    "clip_gradient": ("bound:q+", lambda s, m: 1, None),
    "dropout": ("probability:q0", lambda s, m: kept(s.probability), None),
    "grouped_dropout": ("probability:q0 axes:i", _fates, None),
}
# fmt: on


def _elementwise(attributes: str, slope: Any, bound: Any) -> Op:
    bound = bound or (lambda s, v, n, m: slope(s, m) * v)
    extent = lambda s, x: [bound(s, v, n, x[0].M) for v, n in zip(x[0], (s.N, s.D, 1), strict=True)]
    return Op(attributes, lambda s: s.I[0], extent, slope and (lambda s, x: [slope(s, x[0].M)]))


# Linear maps with weights: u·X + √P·B


def _conv(s: Any) -> Any:
    (c, *sizes), windows = s.I[0], (s.kernel, s.stride, s.dilation, s.padding)
    ok(None, c % s.groups == 0 == s.channels % s.groups, {*map(len, windows)} == {len(sizes)})
    ok(None, *map(padded, sizes, s.padding, repeat(s.padding_mode)))
    return (s.channels, *map(outputs, sizes, *windows))


def _transposed(s: Any) -> Any:
    (c, *sizes), extra = s.I[0], s.output_padding
    axes = [*zip(sizes, s.kernel, s.stride, s.dilation, s.padding, extra, strict=True)]
    found = [(n - 1) * t + d * (k - 1) + 1 - sum(p) + e for n, k, t, d, p, e in axes if e < t]
    ok(None, c % s.groups == 0 == s.channels % s.groups, len(found) == len(axes), min(found, default=1) > 0)
    return (s.channels, *found)


def _taps(s: Any, fine: Any, coarse: Any, mode: str) -> dict[str, int]:
    """Reads m of an entry of the finer image, r·v, and positions; M of the axes, which no certificate says."""
    windows = (fine, coarse, s.kernel, s.stride, s.dilation, s.padding, repeat(mode))
    axes, s.overlap = [*map(counts, *windows)], prod(map(joint, *windows), start=Q(1))
    taps, reads = prod(axis.repeats * axis.taps for axis in axes), prod(axis.reads for axis in axes)
    return {"reads": reads, "taps": taps, "positions": prod(s.O[1:])}


def _affine(s: Any, x: Sequence[Extent]) -> list[Real]:
    return [s.T["weight"] * x[0].X + root(s.C["positions"]) * s.T.get("bias", 0)]


def _weighted(weight: Callable[[Any], Shape], kappa: Callable[[Any, Any], Real], outputs: str) -> dict[str, Role]:
    bias = Role(lambda s: (getattr(s, outputs),), "ball", lambda s, x: root(s.C["positions"]), optional=True)
    return {"weight": Role(weight, LINEAR, kappa), "bias": bias}


def _weight(s: Any, x: Any) -> Bounds:
    return [s.T["weight"]]


def _shared(s: Any, x: Any) -> Any:
    return root(s.overlap) * x[0].X


def _numbers(kinds: str, per: Callable[[Any], int], entries: int = 1) -> Role:
    """Numbers along the axis, each of which acts on as many entries at every position."""

    def shape(s: Any) -> Shape:
        return (1,) if getattr(s, "shared", False) else (per(s), *[1] * (len(s.I[0]) - 1 - s.axis))

    def alike(s: Any) -> int:
        return entries * int(s.N if getattr(s, "shared", False) else s.N // along(s))

    return Role(shape, kinds, lambda s, x: least(x[0].X, root(alike(s)) * x[0].M))


def _sorted(s: Any, x: Any) -> Bounds:
    return [1, 1 if last(s) else UNBOUNDED, 1]


def _reflected(s: Any, x: Any) -> Bounds:
    return [1, 1 if last(s) else root(2), root(2)]


def _axis(s: Any, size: int = 1) -> Any:
    return ok(s.I[0], along(s) % size == 0)


def _dense(weight: Callable[[Any], Shape]) -> Op:
    return Op(
        "features:n",
        lambda s: (*ok(s.I[0], s.I[0])[:-1], s.features),
        lambda s, x: [*_affine(s, x), s.T["weight"] * x[0].R + s.T.get("bias", 0)],
        _weight,
        _weighted(weight, lambda s, x: x[0].X, "features"),
        lambda s, c: {"positions": prod(s.I[0][:-1])},
    )


CONV = "channels:n kernel:n* stride:n* padding:pads* dilation:n* groups:n "
# fmt: off
LINEAR_OPS = {
    "dense": _dense(lambda s: (s.features, s.I[0][-1])),
    "dense_transpose": _dense(lambda s: (s.I[0][-1], s.features)),
    "bias": Op("size:n*", lambda s: ok(s.I[0], fits(s.size, s.I[0])),
               lambda s, x: [x[0].X + root(s.C["positions"]) * s.T["bias"],
                             x[0].R + root(s.D // (1, *s.size)[-1]) * s.T["bias"], x[0].M + s.T["bias"]],
               _one, {"bias": Role(lambda s: s.size, "ball", lambda s, x: root(s.C["positions"]))},
               lambda s, c: {"positions": s.N // prod(s.size)}),
    "conv": Op(CONV + f"padding_mode:{MODES}", _conv, _affine, _weight,
               _weighted(lambda s: (s.channels, s.I[0][0] // s.groups, *s.kernel), _shared, "channels"),
               lambda s, c: _taps(s, s.I[0][1:], s.O[1:], s.padding_mode)),
    "conv_transpose": Op(CONV + "output_padding:i*", _transposed, _affine, _weight,
                         _weighted(lambda s: (s.I[0][0], s.channels // s.groups, *s.kernel), _shared, "channels"),
                         lambda s, c: _taps(s, s.O[1:], s.I[0][1:], "zeros")),
    "groupsort": scaling("size:n axis:i", lambda s: _axis(s, s.size), _sorted),
    "fullsort": scaling("axis:i", _axis, _sorted),
    "prelu": scaling("axis:i shared:flag", _axis, lambda s, x: [most(1, s.T["slope"])] * 3,
                     roles={"slope": _numbers("box", along)}),
    "scale": scaling("axis:i shared:flag", _axis, lambda s, x: [s.T["gain"]] * 3,
                     roles={"gain": _numbers("box", along)}),
    "householder": scaling("axis:i", lambda s: _axis(s, 2), _reflected,
                           roles={"angle": _numbers("free", lambda s: along(s) // 2, 2)}),
    "fixed_householder": scaling("angle:q axis:i", lambda s: _axis(s, 2), _reflected),
}
# fmt: on

# Pools: √m of the windows an entry is in, or the norms of the averages of the axes: claimed, and proved


def _pooled(s: Any) -> Any:
    (c, *sizes), windows = s.I[0], (s.kernel, s.stride, s.dilation, s.padding)
    ok(None, {*map(len, windows)} == {len(sizes)})
    return (c, *map(outputs, sizes, *windows, [s.ceil_mode] * len(sizes)))


def _reads(s: Any, claimed: Any) -> dict[str, Any]:
    axes = [*map(counts, s.I[0][1:], s.O[1:], s.kernel, s.stride, s.dilation, s.padding)]
    require(all(axis.fewest for axis in axes), "a window lies wholly in the padding")
    s.most = prod(axis.taps for axis in axes)
    return {"reads": prod(axis.reads for axis in axes)}


def _proved(s: Any, claimed: Any, matrices: Sequence[list[Row]]) -> dict[str, Any]:
    texts = of_kind(claimed.get("squared_gain"), "text*")
    squares = of_kind([*texts], "q0*")
    for axis, (matrix, square) in enumerate(zip(matrices, squares, strict=True)):
        require(norm_within(matrix, square), f"on axis {axis}, ‖A‖² is not proved to be at most {square}")
    s.norm, s.along_rows = root(prod(squares, start=Q(1))), root(squares[-1]) if squares else real(1)
    return {"squared_gain": [*texts]}


def _averaged(s: Any, claimed: Any, by: str = "sum") -> dict[str, Any]:
    _reads(s, claimed)
    axes = zip(s.I[0][1:], s.O[1:], s.kernel, s.stride, s.dilation, s.padding, strict=True)
    return _proved(s, claimed, [averages(axis, by) for axis in axes])


def _sums(s: Any, x: Sequence[Extent]) -> Bounds:
    return s.norm * x[0].X, UNBOUNDED, least(x[0].M * s.most, root(s.most) * x[0].X)


def _root_m(s: Any) -> Real:
    return root(s.C["reads"])


def _lengths(s: Any, x: Sequence[Extent], taps: Real) -> Bounds:
    return _root_m(s) * x[0].X, UNBOUNDED, least(taps * x[0].M, x[0].X)


def _mean(s: Any, x: Any) -> Bounds:
    return [s.norm, UNBOUNDED, 1]


def _scattered(s: Any, claimed: Any) -> dict[str, Any]:
    text, sizes = of_kind(claimed.get("squared_gain"), "text"), s.I[0][1:]
    copies = prod(padded(n, padding(n, s.scales), "reflect") for n in sizes)
    found = energy(s.scales, s.angles, s.order, sizes) * copies
    require(
        found <= of_kind(text, "q0"),
        f"the squared norm is claimed to be {text}, but only the bound {float(found)!r} is proved",
    )
    s.norm = root(Q(text))
    return {"squared_gain": text}


def _upsampled(s: Any, claimed: Any) -> dict[str, Any]:
    if s.mode == "nearest":
        ok(None, not s.align_corners)
        s.norm, s.along_rows, s.sums = root(prod(s.factor)), root(s.factor[-1]), [1]
        return {"squared_gain": [str(factor) for factor in s.factor]}
    matrices = [interpolation(n, f, s.mode, s.align_corners) for n, f in zip(s.I[0][1:], s.factor, strict=True)]
    s.sums = [max(sum(map(abs, row.values())) for row in matrix) for matrix in matrices]
    return _proved(s, claimed, matrices)


def _coefficients(s: Any) -> Any:
    pairs = s.angles**2 * s.scales * (s.scales - 1) // 2 if s.order == 2 else 0
    c, *sizes = ok(s.I[0], len(s.I[0]) == 3, s.order <= 2, s.scales < min(s.I[0][1:]).bit_length())
    return (c * (1 + s.scales * s.angles + pairs), *(n >> s.scales for n in sizes))


# Colours

_LUMA = "0.299 0.587 0.114"
_COLOURS = {
    "grayscale": _LUMA,
    "yiq": f"{_LUMA} 0.59590059 -0.27455667 -0.32134392 0.21153661 -0.52273617 0.31119955",
    "yuv": f"{_LUMA} -0.14714119 -0.28886916 0.43601035 0.61497538 -0.51496512 -0.10001026",
}


def _picture(s: Any) -> Any:
    return ok(s.I[0], len(s.I[0]) == 3, s.I[0][0] == 3)


def _coloured(s: Any) -> Any:
    return (len(_COLOURS[s.space].split()) // 9 * 2 + 1, *_picture(s)[1:])


def _colour(s: Any, x: Any) -> Bounds:
    """√c of a c for which c·I - MᵀM has positive leading minors; of one row, its length."""
    m = [*map(Q, _COLOURS[s.space].split())]
    c = Q("0.734641") if len(m) == 9 else sum(entry * entry for entry in m)
    if len(m) == 9:
        (a, b, d), (_, e, f), (_, _, g) = (
            [(c if i == j else 0) - sum(m[k + i] * m[k + j] for k in (0, 3, 6)) for j in range(3)]
            for i in range(3)
        )
        determinant = a * (e * g - f * f) - b * (b * g - f * d) + d * (b * f - e * d)
        require(a > 0 and a * e - b * b > 0 and determinant > 0, "the norm of a colour space is larger")
    return [root(c)]


def _hued(s: Any, x: Sequence[Extent]) -> Bounds:
    return [root(prod(s.I[0])), root(s.I[0][-1]), 1]


# Features of length 1


def _whitened_scattering(s: Any) -> Any:
    s.order = 2
    coefficients, *grid = _coefficients(s)
    channels = s.I[0][0]
    ok(None, channels in ((1,) if s.source == "strokes" else (1, 3)), s.channels <= coefficients)
    return (s.channels, *grid)


def _mirrored_scattering(s: Any) -> Any:
    channels, height, width = _whitened_scattering(s)
    return (channels, height, -(-width // 2))


def _on_the_sphere(s: Any, x: Sequence[Extent]) -> Bounds:
    return [1, 1, 1]


def _whitened_patches(s: Any) -> Any:
    c, *sizes = ok(s.I[0], len(s.I[0]) == 3, s.I[0][0] in (1, 3), s.size <= min(s.I[0][1:]))
    return (c * s.size**2, *((n - s.size) // s.stride + 1 for n in sizes))


# Reductions of P groups of n entries to one: slope, X, R (where rows, of d entries, are kept), M


def _reduced(s: Any) -> Any:
    if not hasattr(s, "axes"):  # a global pool
        s.axes = tuple(range(1, len(s.I[0])))
    s.n, s.d = prod(s.I[0][axis] for axis in axes_of(s)), s.I[0][-1]
    return tuple(1 if k in s.axes else n for k, n in enumerate(s.I[0]) if s.keep or k not in s.axes)


def axes_of(s: Any) -> Any:
    """The axes, all of which exist, in order, once each."""
    return ok(s.axes, s.axes, [*s.axes] == sorted({*s.axes}), max(s.axes) < len(s.I[0]))


def _reduction(attributes: str, rule: Callable[[Any, Extent], tuple[Any, Any, Any, Any]]) -> Op:
    def extent(s: Any, x: Sequence[Extent]) -> Bounds:
        _, norm, row, entry = rule(s, x[0])
        across = entry if s.D == 1 else norm
        return norm, across if len(s.I[0]) - 1 in s.axes else row, entry

    return Op(attributes, _reduced, extent, lambda s, x: [rule(s, x[0])[0]])


def _euclidean(s: Any, x: Extent) -> tuple[Any, ...]:
    whole_rows = root(Q(s.n, s.d)) * x.R if len(s.I[0]) - 1 in s.axes else UNBOUNDED
    return 1, x.X, root(s.n) * x.R, least(root(s.n) * x.M, whole_rows)


def _logsumexp(s: Any, x: Extent) -> tuple[Any, ...]:
    return 1, x.X + root(s.N) * log(s.n), root(min(s.n, s.d)) * x.R + root(s.d) * log(s.n), x.M + log(s.n)


REDUCE: dict[str, Any] = {
    "mean": lambda s, x: (root(Q(1, s.n)), root(Q(1, s.n)) * x.X, x.R, x.M),
    "sum": lambda s, x: (root(s.n), root(s.n) * x.X, x.R * s.n, x.M * s.n),
    "max": lambda s, x: (1, x.X, root(min(s.n, s.d)) * x.R, x.M),
    "l2": _euclidean,
}
KEEP = "axes:i* keep:flag"
WHITENED = "channels:n source:leaves|strokes scales:n angles:n floor:q+ power:q0 images:n"
WINDOW = "kernel:n* stride:n* padding:pads* dilation:n* ceil_mode:flag"
# fmt: off
POOL_OPS = {
    "max_pool": scaling(WINDOW, _pooled, lambda s, x: [_root_m(s), UNBOUNDED, 1], conditions=_reads),
    "l2_pool": Op(WINDOW, _pooled, lambda s, x: _lengths(s, x, root(s.most)), lambda s, x: [_root_m(s)],
                  conditions=_reads),
    "lp_pool": Op("p:n " + WINDOW, _pooled,
                  lambda s, x: _sums(s, x) if s.p == 1 else _lengths(s, x, 1 / power(s.most, Q(1, s.p))),
                  lambda s, x: [s.norm if s.p == 1 else _root_m(s)],
                  conditions=lambda s, c: _averaged(s, c) if s.p == 1 else _reads(s, c)),
    "scaled_avg_pool": Op(WINDOW, _pooled, _sums, lambda s, x: [s.norm], conditions=_averaged),
    "avg_pool": scaling(WINDOW + " count_include_pad:flag", _pooled, _mean,
                        conditions=lambda s, c: _averaged(s, c, "padding" if s.count_include_pad else "entries")),
    "adaptive_avg_pool": scaling("size:n*", lambda s: ok((s.I[0][0], *s.size), len(s.size) == len(s.I[0]) - 1),
                                 _mean,
                                 conditions=lambda s, c: _proved(s, c, [*map(adaptive, s.I[0][1:], s.size)])),
    "reduce_mean": _reduction(KEEP, REDUCE["mean"]), "global_avg_pool": _reduction("keep:flag", REDUCE["mean"]),
    "reduce_sum": _reduction(KEEP, REDUCE["sum"]), "reduce_l1": _reduction(KEEP, REDUCE["sum"]),
    "reduce_max": _reduction(KEEP, REDUCE["max"]), "global_max_pool": _reduction("keep:flag", REDUCE["max"]),
    "reduce_l2": _reduction(KEEP, REDUCE["l2"]), "global_l2_pool": _reduction("keep:flag", REDUCE["l2"]),
    "reduce_min": _reduction(KEEP, REDUCE["max"]), "logsumexp": _reduction(KEEP, _logsumexp),
    "upsample": scaling("factor:n* mode:nearest|bilinear|bicubic align_corners:flag",
                        lambda s: (s.I[0][0], *(n * f for n, f in zip(s.I[0][1:], s.factor, strict=True))),
                        lambda s, x: [s.norm, s.along_rows * prod(s.sums[:-1], start=Q(1)), prod(s.sums)],
                        conditions=_upsampled),
    "colour_space": scaling("space:grayscale|yiq|yuv", _coloured, _colour),
    "hsv": Op("", _picture, _hued, None),
    "scattering2d": scaling("scales:n angles:n order:n", _coefficients, lambda s, x: [s.norm],
                            conditions=_scattered),
    "whitened_scattering2d": Op(WHITENED, _whitened_scattering, _on_the_sphere, None),
    "mirrored_scattering2d": Op(WHITENED, _mirrored_scattering, _on_the_sphere, None),
    "whitened_patches": Op("size:n stride:n floor:q+ power:q0 images:n", _whitened_patches, _on_the_sphere, None),
}
# fmt: on

# Rearrangements and copies


def fits(shape: Any, whole: Any) -> bool:
    """Whether a shape broadcasts to another, aligned at the last axis."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(own in (1, other) for own, other in pairs)


def _reshaped(s: Any, x: Any) -> Bounds:
    before = (1, *s.I[0])[-1]  # rows are runs in row-major order
    parts, whole = before % s.D == 0, s.D % before == 0
    return [1, 1 if parts else root(s.D // before) if whole else UNBOUNDED, 1]


def _blocks(s: Any) -> Any:
    c, h, w = s.I[0]
    return ok((c * s.size**2, h // s.size, w // s.size), h % s.size == 0 == w % s.size)


def _copies(s: Any) -> list[Real]:
    return [root(prod(s.C["copies"])), root((1, *s.C["copies"])[-1]), real(1)]


def _gathered(s: Any, claimed: Any) -> dict[str, Any]:
    return {"copies": [max(Counter(s.indices).values()) if axis == s.axis else 1 for axis in range(len(s.I[0]))]}


def _scrambled(s: Any, x: Any) -> Bounds:
    return [1, UNBOUNDED, 1]


def _permuted(s: Any) -> Any:
    return ok(tuple(s.I[0][axis] for axis in s.axes), sorted(s.axes) == [*range(len(s.I[0]))])


def _expanded(s: Any, claimed: Any) -> dict[str, Any]:
    return {"copies": [n // old for n, old in zip(s.O, (1,) * (len(s.O) - len(s.I[0])) + s.I[0], strict=True)]}


# fmt: off
SHAPE_OPS = {
    "flatten": scaling("", lambda s: (prod(s.I[0]),), _scrambled),
    "reshape": scaling("shape:n*", lambda s: ok(s.shape, prod(s.shape) == prod(s.I[0])), _reshaped),
    "transpose": scaling("axes:i*", _permuted,
                         lambda s, x: [1, 1 if s.axes[-1:] == (len(s.axes) - 1,) else UNBOUNDED, 1]),
    "space_to_depth": scaling("size:n", _blocks, _scrambled),
    "patches": scaling("size:n", lambda s: (prod(_blocks(s)[1:]), _blocks(s)[0]), _scrambled),
    "depth_to_space": scaling("size:n", lambda s: ok((s.I[0][0] // s.size**2, *(n * s.size for n in s.I[0][1:])),
                              len(s.I[0]) == 3, s.I[0][0] % s.size**2 == 0), _scrambled),
    "slice": scaling("axis:i start:i stop:n",
                     lambda s: ok(instead(s, s.stop - s.start), s.start < s.stop <= along(s)),
                     lambda s, x: [1, 1, 1]),
    "pad": scaling(f"padding:pads* mode:{MODES}",
                   lambda s: (s.I[0][0], *(n + sum(p) for n, p in zip(s.I[0][1:], s.padding, strict=True))),
                   lambda s, x: _copies(s),
                   conditions=lambda s, c: {"copies": [1, *map(padded, s.I[0][1:], s.padding, repeat(s.mode))]}),
    "gather": scaling("indices:i* axis:i", lambda s: ok(instead(s, len(s.indices)), max(s.indices) < along(s)),
                      lambda s, x: _copies(s), conditions=_gathered),
    "expand": scaling("shape:n*", lambda s: ok(s.shape, fits(s.I[0], s.shape)), lambda s, x: _copies(s),
                      conditions=_expanded),
}
# fmt: on

# Several operands


def _broadcast(s: Any) -> Any:
    whole = max(s.I, key=lambda shape: (prod(shape), len(shape)))
    return ok(whole, len(getattr(s, "weights", s.I)) == len(s.I), *(fits(shape, whole) for shape in s.I))


def _operand_copies(s: Any, claimed: Any) -> dict[str, Any]:
    s.within = [s.D // (1, *shape)[-1] for shape in s.I]  # of them, within a row
    return {"copies": [s.N // prod(shape) for shape in s.I]}


def _added(s: Any, x: Any) -> list[Real]:
    return [root(w**2 * n) for w, n in zip(s.weights, s.C["copies"], strict=True)]


def _sum(s: Any, x: Sequence[Extent]) -> list[Real]:
    rows = [root(w**2 * n) for w, n in zip(s.weights, s.within, strict=True)]
    factors = (_added(s, x), rows, [abs(w) for w in s.weights])
    return [total(y[k] * f for y, f in zip(x, factors[k], strict=True)) for k in range(3)]


def _meets(s: Any, x: Sequence[Extent]) -> list[Real]:
    """What one entry of an operand meets of the other: an entry, or P of them in P/p pieces of rows."""
    each = zip(s.C["copies"], s.within, reversed(x), strict=True)
    return [y.M if n == 1 else least(y.X, root(Q(n, p)) * y.R, root(n) * y.M) for n, p, y in each]


def _product(s: Any, x: Sequence[Extent]) -> list[Real]:
    rows = [y.M if p == 1 else least(y.R, root(p) * y.M) for p, y in zip(s.within, reversed(x), strict=True)]
    (left, right), (h, g) = _meets(s, x), x
    return [least(left * h.X, right * g.X), least(rows[0] * h.R, rows[1] * g.R), h.M * g.M]


def _joined(s: Any) -> Any:
    alike = {instead(s, 1, shape=shape) for shape in s.I}
    return ok(instead(s, sum(shape[s.axis] for shape in s.I)), along(s), len(alike) == 1)


def _beside(x: Sequence[Extent], in_rows: bool) -> list[Real]:
    rows = hypotenuse(y.R for y in x) if in_rows else most(*(y.R for y in x))
    return [hypotenuse(y.X for y in x), rows, most(*(y.M for y in x))]


def _selection(attributes: str) -> Op:
    def shape(s: Any) -> Any:
        return ok(s.I[0], len({*s.I}) == 1, not attributes or len(s.mask) == prod(s.I[0]))

    more: Any = {"operands": (2, 2 if attributes else MOST_NODES), "parts": True}
    return Op(attributes, shape, lambda s, x: _beside(x, True), _ones, **more)


# Functions of entries without slopes: those whose values are 0 or 1, and how many operands the others have

DECIDED = "equal|greater|at_least|is_nan|is_infinite"
PLACES = {"select": 3, "quotient": 2}
AT_PLACES = f"function:{DECIDED}|constant|truncated|floor|ceil|round|exp|log|power|quotient|select number:q"


def _at_places(s: Any) -> Any:
    return ok(s.I[0], len({*s.I}) == 1, len(s.I) == PLACES.get(s.function, 1))


def _values(s: Any, x: Sequence[Extent]) -> Bounds:
    if s.function == "truncated":
        return [*x[0]]
    if s.function == "select":
        _, (norm, row, entry), (norm_2, row_2, entry_2) = x
        return [root(norm * norm + norm_2 * norm_2), root(row * row + row_2 * row_2), most(entry, entry_2)]
    size = {"constant": abs(s.number)}.get(s.function, 1 if s.function in DECIDED.split("|") else None)
    return [UNBOUNDED] * 3 if size is None else [root(s.N) * size, root(s.D) * size, root(1) * size]


# Attention: the quantities of section 3a


def _seen(s: Any) -> Counter[int]:
    """How many rows see how many keys."""
    rows, keys = s.I[0][-2], s.I[min(1, len(s.I) - 1)][-2]
    spend(16 * rows if s.causal else 1)
    return Counter(min(i, keys) for i in range(1, rows + 1)) if s.causal else Counter({keys: rows})


def _weights(s: Any, spread: Real) -> Real:
    """p = √Σ 1/(1 + (c-1)·e^-2s)."""
    return root(total(rows / (1 + decay(spread * 2) * (c - 1)) for c, rows in _seen(s).items()))


def _attention(s: Any, x: Sequence[Extent]) -> Any:
    if getattr(s, "read", None) is not x:
        s.read, s.found = x, _attended(s, x)
    return s.found


def _attended(s: Any, x: Sequence[Extent]) -> SimpleNamespace:
    y, c, seen, half = x[0], x[-1], _seen(s), root(Q(1, 2))
    q, k, v, o = (s.T[role] for role in ("query", "key", "value", "output"))
    width, t, m2 = root(Q(s.heads, s.I[0][1])), kept(s.dropout), least(c.R * c.R, c.X * c.X / 2)
    p = _weights(s, q * k * y.R * root(m2) * width)
    one, every = (
        least(root(sum(min(h, keys) * rows for keys, rows in seen.items())) * c.R, p * c.X) for h in (1, s.heads)
    )
    of_context = o * v * t * (p + q * k * root(m2) * least(p * y.R, y.X * half) * width)
    of_queries = o * v * q * k * m2 * width * t
    found = SimpleNamespace(query=o * v * k * y.X * m2 * width * t, key=o * v * q * y.X * m2 * width * t)
    found.value, found.output = o * one * t, v * every * t
    found.extent = o * v * every * t, o * v * least(root(min(s.heads, max(seen))) * c.R, c.X) * t
    found.slopes = [of_queries + of_context] if len(x) == 1 else [of_queries, of_context]
    return found


def _dot_product(s: Any, x: Sequence[Extent]) -> tuple[list[Real], list[Real]]:
    scale = root(Q(1, s.I[0][-1])) if s.scale is None else real(abs(s.scale))
    t, (k2, v2) = kept(s.dropout), (least(y.R * y.R, y.X * y.X / 2) for y in x[1:])
    p = _weights(s, scale * x[0].R * root(k2))
    slopes = [scale * root(k2 * v2) * t, scale * root(v2) * least(p * x[0].R, x[0].X * root(Q(1, 2))) * t, p * t]
    return slopes, [least(root(s.N // s.D) * x[2].R, p * x[2].X) * t, x[2].R * t, x[2].M * t]


def _matrices(s: Any) -> Any:
    a, b = s.I
    return ok((*a[:-1], b[-1]), len(a) > 1, a[:-2] == b[:-2], a[-1:] == b[-2:-1])


def _spectral(s: Any, x: Sequence[Extent]) -> list[Real]:
    a, b = (least(y.X, root(shape[-2]) * y.R) for y, shape in zip(x, s.I, strict=True))
    return [b, a]


def _multiplied(s: Any, x: Sequence[Extent]) -> list[Real]:
    b, a = _spectral(s, x)
    return [least(b * x[0].X, a * x[1].X), b * x[0].R, b * x[0].R]


def _tokens(s: Any) -> Any:
    return ok(s.I[0], {*map(len, s.I)} == {2}, s.I[0][1] % s.heads == 0, not s.causal or len(s.I) == 1)


def _heads(s: Any) -> Any:
    q, k, v = s.I
    return ok((*q[:-1], v[-1]), q[:-2] == k[:-2] == v[:-2], q[-1] == k[-1], k[-2] == v[-2])


def _attending(role: str, shape: Callable[[Any], Shape]) -> Role:
    return Role(shape, LINEAR, lambda s, x: getattr(_attention(s, x), role))


# fmt: off
MERGE_OPS = {
    "add": Op("weights:q*", _broadcast, _sum, _added, conditions=_operand_copies, operands=(1, MOST_NODES)),
    "multiply": Op("", _broadcast, _product, _meets, conditions=_operand_copies, operands=(2, 2)),
    "matmul": Op("", _matrices, _multiplied, _spectral, operands=(2, 2)),
    "concat": Op("axis:i", _joined, lambda s, x: _beside(x, last(s)), _ones, operands=(1, MOST_NODES), parts=True),
    "maximum": _selection(""), "minimum": _selection(""), "where": _selection("mask:flag*"),
    "pointwise": Op(AT_PLACES, _at_places, _values, None, operands=(1, 3)),
    "noise": Op("", lambda s: s.I[0], lambda s, x: [UNBOUNDED] * 3, None),
    "zeros": Op("size:n*", lambda s: s.size, lambda s, x: [UNBOUNDED] * 3, None),
    "own_network": Op("size:n* tokens:i*", lambda s: s.size, lambda s, x: [UNBOUNDED] * 3, None,
                      operands=(1, MOST_NODES)),
    "class_token": Op("count:n axis:i last:flag", lambda s: instead(s, along(s) + s.count),
                      lambda s, x: _beside([x[0], Extent(*[s.T["tokens"]] * 3)], last(s)), _one,
                      {"tokens": Role(lambda s: instead(s, s.count), "ball", lambda s, x: real(1))}),
    "attention": Op("heads:n causal:flag dropout:q0", _tokens, lambda s, x: _attention(s, x).extent,
                    lambda s, x: _attention(s, x).slopes,
                    {"query": _attending("query", lambda s: (s.I[0][1], s.I[0][1])),
                     "key": _attending("key", lambda s: (s.I[0][1], s.I[-1][1])),
                     "value": _attending("value", lambda s: (s.I[0][1], s.I[-1][1])),
                     "output": _attending("output", lambda s: (s.I[0][1], s.I[0][1]))}, operands=(1, 2)),
    "dot_product_attention": Op("scale:q? causal:flag dropout:q0", _heads, lambda s, x: _dot_product(s, x)[1],
                                lambda s, x: _dot_product(s, x)[0], operands=(3, 3)),
    "embedding": Op("entries:n width:n", lambda s: (*s.I[0], s.width),
                    lambda s, x: [root(prod(s.I[0])) * s.T["table"], s.T["table"]], None,
                    {"table": Role(lambda s: (s.entries, s.width), "rows", lambda s, x: root(prod(s.I[0])))}),
}
# fmt: on

# Norms of disjoint groups of n entries, k of them in one row, divided by α at least


def _groups(s: Any) -> Any:
    if hasattr(s, "axes"):
        s.n, s.k = prod(s.I[0][axis] for axis in axes_of(s)), s.I[0][-1] if len(s.I[0]) - 1 in s.axes else 1
    else:
        (c, *sizes), groups = s.I[0], getattr(s, "groups", s.I[0][0])
        s.n = prod(s.I[0]) // ok(groups, c % groups == 0, sizes or hasattr(s, "groups"))
        s.k = s.I[0][-1] if sizes else s.n
    if hasattr(s, "floor"):
        s.alpha = ok(real(s.floor) if s.eps is None else root(s.eps), (s.floor is None) != (s.eps is None))
    return s.I[0]


def _centred(s: Any, x: Sequence[Extent]) -> Extent:
    rest, within = 1 - Q(1, s.n), x[0].R if s.n == s.k else x[0].X
    row = x[0].R if s.n == s.k else least(root(rest) * x[0].X, x[0].R * (2 * rest)) if s.k == 1 else x[0].X
    return Extent(x[0].X, row, least(root(rest) * within, x[0].M * (2 * rest)))


def _normalised(attributes: str, centre: bool) -> Op:
    def extent(s: Any, x: Sequence[Extent]) -> list[Real]:
        y, one = _centred(s, x) if centre else x[0], s.n - 1 if centre else s.n
        sizes = (s.N, Q(s.D, s.k) * (one if s.k == 1 else s.n), one)
        return [least(bound / s.alpha, root(size)) for bound, size in zip(y, sizes, strict=True)]

    return Op(attributes, lambda s: ok(_groups(s), s.n > centre), extent, lambda s, x: [1 / s.alpha])


def _response(s: Any) -> Any:
    m, b = min(s.size, s.I[0][0]), s.beta
    return power(s.k, b) * root(1 + b * (m - 1) / (2 * b + 1 + root((2 * b + 1) * (b + 1) / 3) * 4))


def _soft(s: Any, x: Sequence[Extent], scale: Q | int) -> tuple[Real, Real, Real]:
    """Y of one softmax of s.k entries, q = e^-(their largest difference), and S from the vertices p_i <= p_j/q."""
    y = x[0].R if last(s) else x[0].X
    q = decay(least(x[0].M * 2, root(2) * y) * scale)
    spend(16 * min(s.k, 1000))
    vertices = [(q * q * (s.k - m) + m, q * (s.k - m) + m) for m in range(1, s.k if s.k <= 1000 else 1)]
    return y, q, root(least(1, *([most(*(a / (b * b) for a, b in vertices))] if vertices else [])))


def _softmax(s: Any, x: Sequence[Extent]) -> tuple[Real, list[Real]]:
    (y, q, spread), scale = _soft(s, x, s.temperature), s.temperature
    entry = 1 / (1 + decay(least(x[0].M * 2, root(Q(s.k, s.k - 1)) * y) * scale) * (s.k - 1))
    row = spread if last(s) else root(s.D) * entry
    return least(1 / (2 + q * (s.k - 2)), entry) * scale, [root(s.N // s.k) * spread, row, entry]


def _log_softmax(s: Any, x: Sequence[Extent]) -> list[Real]:
    base, y = log(s.k), x[0].R if last(s) else x[0].X
    across = root(s.D) * base + least(root(2) * x[0].X, root(4 * s.D) * x[0].M)
    row = root(s.k) * (x[0].R + base) if last(s) else across
    return [root(s.k) * x[0].X + root(s.N) * base, row, base + least(root(2) * y, x[0].M * 2)]


def _alternatives(s: Any) -> Any:
    s.k = ok(along(s), along(s) >= 2)
    return s.I[0]


# fmt: off
NORM_OPS = {
    "center": Op("axes:i*", lambda s: ok(_groups(s), s.n > 1), _centred, _one),
    "layer_norm": _normalised("floor:q+? eps:q+? axes:i*", centre=True),
    "group_norm": _normalised("groups:n floor:q+? eps:q+?", centre=True),
    "instance_norm": _normalised("floor:q+? eps:q+?", centre=True),
    "rms_norm": _normalised("floor:q+? eps:q+? axes:i*", centre=False),
    "lrn": Op("size:n alpha:q0 beta:q0 k:q+", lambda s: ok(s.I[0], len(s.I[0]) >= 2, s.beta <= 1),
              lambda s, x: [bound * power(s.k, s.beta) for bound in x[0]], lambda s, x: [_response(s)]),
    "softmax": Op("temperature:q+ axis:i", _alternatives, lambda s, x: _softmax(s, x)[1],
                  lambda s, x: [_softmax(s, x)[0]]),
    "log_softmax": Op("axis:i", _alternatives, _log_softmax, lambda s, x: [root(s.k) * _soft(s, x, 1)[2]]),
}
# fmt: on
OPS: dict[str, Op] = {name: _elementwise(*row) for name, row in ELEMENTWISE.items()}
OPS |= LINEAR_OPS | POOL_OPS | SHAPE_OPS | MERGE_OPS | NORM_OPS
