"""Numbers that the verifier must find, derived by hand from bounds.md; the compiler has no part in this."""

from __future__ import annotations

from fractions import Fraction
from math import cos, exp, isclose, pi, sin, sqrt
from typing import Any

import pytest
from lipcompile_verify import windows
from lipcompile_verify.derive import Derivation, RuleError
from lipcompile_verify.disjoint_parts import bound
from lipcompile_verify.document import MalformedError
from lipcompile_verify.windows import (
    adaptive,
    averages,
    counts,
    interpolation,
    joint,
    norm_within,
    outputs,
    padded,
)

from tests.overlaps import attained, line
from tests.suprema import supremum

Json = dict[str, Any]
KR: Json = {"name": "multiclass_kr", "attributes": {"reduce": "sum"}}
ENTROPY: Json = {"temperature": "1", "normalise": True, "label_smoothing": "0", "class_weights": []}


def node(
    name: str, op: str, inputs: str, shape: list[int], parameters: Json | None = None, **attributes: Any
) -> Json:
    values = {"attributes": attributes, "shape": shape, "parameters": parameters or {}}
    return {"name": name, "op": op, "inputs": inputs.split(), **values}


def weight(shape: list[int], constraint: str = "spectral", radius: str = "1") -> Json:
    return {"shape": shape, "constraint": constraint, "bound": radius, "trainable": True}


def derived(
    shape: list[int],
    nodes: list[Json],
    parameters: Json,
    loss: Json = KR,
    norm: str | None = "3",
) -> Derivation:
    """`norm` None: of tokens."""
    source = {"name": "x", "shape": shape, "norm": norm, "trusted": False, "tokens": norm is None}
    graph = {"input": source, "nodes": nodes, "parameters": parameters, "output": nodes[-1]["name"], "loss": loss}
    return Derivation(graph, {})


def dense(name: str, operand: str, width: int, by: str = "") -> Json:
    return node(name, "dense", operand, [width], {"weight": by or f"{name}.w"}, features=width)


def flat(name: str, operand: str, size: int) -> Json:
    return node(name, "flatten", operand, [size])


def test_a_chain() -> None:
    nodes = [dense("a", "x", 4), node("b", "relu", "a", [4]), dense("c", "b", 2)]
    found = derived([4], nodes, {"a.w": weight([4, 4], radius="2"), "c.w": weight([2, 4], "frobenius", "1/2")})
    assert found.extents["c"].X.upper() == 3.0  # 2·3/2
    k = sqrt(2)  # the sum over two classes
    assert isclose(found.gradient["c.w"].upper(), k * 6, rel_tol=1e-15)
    assert isclose(found.gradient["a.w"].upper(), k / 2 * 3, rel_tol=1e-15)
    assert bound(found.slope["x"]).upper() == 1.0


def test_a_bias_is_copied_to_every_position() -> None:
    nodes = [
        node("d", "dense", "x", [9, 2], {"weight": "w", "bias": "b"}, features=2),
        flat("f", "d", 18),
    ]
    found = derived([9, 2], nodes, {"w": weight([2, 2]), "b": weight([2], "ball", "1/2")})
    assert found.extents["d"].X.upper() == 3 + 3 * 0.5
    assert found.extents["d"].R.upper() == 3.5
    assert found.nodes["d"].kappa["bias"].upper() == 3.0


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "pad", "mode", "reads"),
    [
        (8, 3, 1, 1, 1, "zeros", 3),
        (8, 3, 2, 1, 1, "zeros", 2),
        (9, 3, 3, 3, 3, "zeros", 3),  # dilation and stride meet: every tap of the output in the middle
        (8, 3, 1, 1, 1, "circular", 3),
        (8, 3, 1, 1, 1, "reflect", 4),  # entry 1 is read thrice, and once more as the padding before entry 0
        (8, 3, 1, 1, 1, "replicate", 3),  # entry 0: by outputs 0 (twice) and 1
        (8, 3, 1, 1, 2, "replicate", 6),  # entry 0 stands three times: read 1 + 2 + 3 times
        (1, 3, 1, 1, 2, "zeros", 3),
        (10, 4, 4, 1, 0, "zeros", 1),
    ],
)
def test_windows_are_counted(
    size: int, kernel: int, stride: int, dilation: int, pad: int, mode: str, reads: int
) -> None:
    out = outputs(size, kernel, stride, dilation, (pad, pad))
    assert counts(size, out, kernel, stride, dilation, (pad, pad), mode).reads == reads


def test_a_convolution() -> None:
    attributes = {
        "channels": 2,
        "kernel": [3, 3],
        "stride": [2, 2],
        "padding": [[1, 1], [1, 1]],
        "dilation": [1, 1],
    }
    nodes = [
        node(
            "c", "conv", "x", [2, 4, 4], {"weight": "w", "bias": "b"}, **attributes, groups=1, padding_mode="zeros"
        ),
        flat("f", "c", 32),
    ]
    parameters = {"w": weight([2, 1, 3, 3], "frobenius"), "b": weight([2], "ball")}
    found = derived([1, 8, 8], nodes, parameters, norm="1")
    assert found.nodes["c"].site.C == {"reads": 4, "taps": 9, "positions": 16}
    # An axis of 8 entries and 4 outputs, each reading 3, or 2 at the border: Σ_t ⟨g, S_t x⟩² reaches 1.7665.
    kappa = found.nodes["c"].kappa["weight"].upper()
    assert attained(line(8, 3, stride=2, padding=1)) <= kappa <= 1.785
    assert found.extents["c"].X.upper() == pytest.approx(kappa + 4.0, rel=1e-15)
    assert found.nodes["c"].kappa["bias"].upper() == 4.0


def test_windows_on_two_entries() -> None:
    """Three taps, two entries, zeros beside: h = (g·x)² + g_1²x_2² + g_2²x_1² is at most 3/2, at (1, 1)/√2."""
    assert joint(2, 2, 3, 1, 1, (1, 1)) == Fraction(3, 2)
    assert joint(2, 2, 5, 1, 1, (2, 2)) == Fraction(3, 2)
    assert joint(1, 3, 3, 1, 1, (2, 2), "replicate") == 9


def test_joint_bounds_of_windows_are_rounded_up() -> None:
    """To five digits, with the margin that a claim has."""
    assert windows._five_digits(Fraction(5, 3)) == Fraction(16667, 10**4)
    assert windows._five_digits(Fraction(2)) == Fraction(20001, 10**4)
    assert windows._five_digits(Fraction(12, 1)) == Fraction(12001, 10**3)


def test_windows_on_long_axes() -> None:
    """Of more than 400 pairs of an output and an entry: counts alone. By strides of 2, an entry is read twice."""
    assert attained(line(20, 3, padding=1)) <= float(joint(20, 20, 3, 1, 1, (1, 1))) < 3
    assert joint(21, 21, 3, 1, 1, (1, 1)) == 3
    assert joint(64, 31, 3, 2, 1, (0, 0)) == 2


def test_counts_by_hand() -> None:
    """Places (0, 0, 1) of two entries, the first replicated; and three entries between zeros."""
    assert counts(2, 2, 2, 1, 1, (1, 0), "replicate") == (3, 2, 2, 2)
    assert counts(3, 3, 3, 1, 1, (1, 1)) == (3, 1, 3, 2)


def test_a_window_that_starts_behind_all_entries_is_left_out() -> None:
    assert outputs(4, 1, 4, 1, (0, 1)) == 2
    assert outputs(4, 1, 4, 1, (0, 1), ceiled=True) == 1


def test_padding_holds_entries_once_more() -> None:
    """Reflected, the places of three entries are (2, 1, 0, 1, 2, 1)."""
    assert padded(3, (2, 1), "reflect") == 3
    assert padded(3, (3, 3), "circular") == 3
    assert padded(3, (0, 2), "zeros") == 1
    for mode, pads in {"reflect": (0, 3), "circular": (4, 0)}.items():
        with pytest.raises(MalformedError, match="longer than the axis allows"):
            padded(3, pads, mode)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [(3, 3, 1, 1), (5, 3, 1, 1), (7, 5, 1, 2), (4, 3, 2, 1), (6, 3, 1, 0), (14, 5, 1, 0), (7, 7, 1, 3)],
)
def test_windows_on_short_axes(size: int, kernel: int, stride: int, padding: int) -> None:
    read = line(size, kernel, stride, padding)
    found = float(joint(size, read.shape[1], kernel, stride, 1, (padding, padding)))
    assert attained(read) <= found <= 1.045 * attained(read)


def fork(*tail: Json) -> Derivation:
    nodes = [dense("a", "x", 4), dense("b", "a", 4), dense("c", "a", 4), *tail]
    return derived([4], nodes, {f"{name}.w": weight([4, 4]) for name in "abc"}, norm="1")


def test_a_sum_adds_cotangents_and_a_concatenation_splits_them() -> None:
    summed = fork(node("s", "add", "b c", [4], weights=["1", "1"]))
    assert bound(summed.slope["a"]).upper() == 2.0
    joined = fork(node("s", "concat", "b c", [8], axis=0))
    assert isclose(bound(joined.slope["a"]).upper(), sqrt(2), rel_tol=1e-15)
    assert bound(joined.slope["b"]).upper() == 1.0


def test_branches_over_disjoint_slices() -> None:
    nodes = [
        node("l", "slice", "x", [2], axis=0, start=0, stop=2),
        node("r", "slice", "x", [2], axis=0, start=2, stop=4),
        dense("b", "l", 2),
        dense("c", "r", 2),
        node("s", "concat", "b c", [4], axis=0),
    ]
    found = derived([4], nodes, {"b.w": weight([2, 2], radius="3"), "c.w": weight([2, 2], radius="2")}, norm="1")
    assert found.extents["s"].X.upper() == 3.0
    assert bound(found.slope["x"]).upper() == 3.0


def test_a_shared_weight_has_the_sum_of_its_uses() -> None:
    nodes = [dense("a", "x", 4, "w"), dense("b", "a", 4, "w")]
    found = derived([4], nodes, {"w": weight([4, 4], radius="1/2")}, norm="1")
    assert found.gradient["w"].upper() == 2 * (1 / 2 + 1 / 2)  # L = 2; first use 1/2·1, second 1·1/2


def test_a_matrix_and_its_transpose_share_a_bound() -> None:
    back = {**dense("b", "a", 4, "w"), "op": "dense_transpose"}
    found = derived([4], [dense("a", "x", 2, "w"), back], {"w": weight([2, 4], radius="1/2")}, norm="1")
    assert found.gradient["w"].upper() == 2 * (1 / 2 + 1 / 2)


@pytest.mark.parametrize(
    ("second", "parameters", "shape"),
    [
        ("dense_transpose", {"weight": "w", "bias": "b"}, [4, 4]),
        ("dense_transpose", {"weight": "w"}, [4, 3]),
    ],
)
def test_what_a_matrix_is_not_shared_by(second: str, parameters: Json, shape: list[int]) -> None:
    again = {**dense("b", "a", shape[0], "w"), "op": second, "parameters": parameters}
    given = {"w": weight(shape)} | ({"b": weight([4], "ball")} if "bias" in parameters else {})
    with pytest.raises(RuleError, match="different linear map" if len(parameters) > 1 else "the shape"):
        derived([4], [dense("a", "x", shape[0], "w"), again], given, norm="1")


def test_a_gradient_clip_bounds_what_passes_and_leaves_the_slope() -> None:
    nodes = [dense("a", "x", 4), node("g", "clip_gradient", "a", [4], bound="1/8"), dense("b", "g", 4)]
    found = derived([4], nodes, {"a.w": weight([4, 4]), "b.w": weight([4, 4])}, norm="1")
    assert found.gradient["a.w"].upper() == 0.125
    assert found.gradient["b.w"].upper() == 2.0
    assert found.gradient_unclipped["a.w"].upper() == 2.0
    assert bound(found.slope["x"]).upper() == 1.0


@pytest.mark.parametrize(
    ("classes", "radius", "attained", "most"),
    [
        (10, "1", 1.0147964184032, 1.0147964184033),  # tests/suprema.py finds them; numpy too, to nine digits
        (10, "2", 1.0811183434634, 1.0811183434635),
        (100, "2", 1.00367, 1.00369),
        (2, "1/2", 0.947, 0.9472),
        (9, "0", 0.94280, 0.94281),
    ],
)
def test_cross_entropy_of_bounded_logits(classes: int, radius: str, attained: float, most: float) -> None:
    loss = {"name": "cross_entropy", "attributes": ENTROPY | {"temperature": "1"}}
    nodes = [node("i", "clip_norm", "x", [classes], radius=radius)]
    if radius == "0":
        nodes = [node("i", "add", "x", [classes], weights=["0"])]
    found = derived([classes], nodes, {}, loss).loss.upper()
    assert attained <= found <= most


@pytest.mark.parametrize("radius", ["1/100", "1", "2", "4", "12"])
@pytest.mark.parametrize(("classes", "smoothing"), [(3, "0"), (10, "0"), (10, "1/2"), (1000, "1/10")])
def test_cross_entropy_is_the_largest_distance_on_the_arc(classes: int, smoothing: str, radius: str) -> None:
    """Logits (-(K-1)a, a + (K-2)b, a - b, …), scaled to the arc; their softmax less the smoothed target."""
    loss = {"name": "cross_entropy", "attributes": ENTROPY | {"label_smoothing": smoothing}}
    found = derived([classes], [node("i", "clip_norm", "x", [classes], radius=radius)], {}, loss, norm="20")
    others, length = classes - 1, float(Fraction(radius))
    even = float(Fraction(smoothing)) / classes

    def distance(s: float) -> float:
        below, spread = length * sin(s * pi / 2), length * cos(s * pi / 2)
        label, mean = -sqrt(others / classes) * below, below / sqrt(others * classes)
        raised, rest = sqrt((others - 1) / others) * spread, -spread / sqrt(others * (others - 1))
        powers = [exp(z - mean - raised) for z in (label, mean + raised, mean + rest)]
        total = powers[0] + powers[1] + (others - 1) * powers[2]
        p = [power / total for power in powers]
        missed = (1 - others * even - p[0], p[1] - even)
        return sqrt(missed[0] ** 2 + missed[1] ** 2 + (others - 1) * (p[2] - even) ** 2)

    exact = supremum(distance)
    assert exact * (1 - 1e-13) <= found.loss.upper() <= exact * (1 + 1e-13)


def test_cross_entropy_of_two_classes_is_a_logistic_function() -> None:
    loss = {"name": "cross_entropy", "attributes": ENTROPY | {"temperature": "2", "normalise": False}}
    found = derived([2], [node("i", "identity", "x", [2])], {}, loss, norm="3").loss.upper()
    assert isclose(found, 2 * sqrt(2) / (1 + exp(-sqrt(2) * 6)), rel_tol=1e-14)


@pytest.mark.parametrize("weights", [["1/2", "3"], ["3", "0"]])
def test_the_largest_weight_of_a_class_multiplies_the_loss(weights: list[str]) -> None:
    """A class of weight 0 counts for nothing; two classes as above, of length 3."""
    loss = {"name": "cross_entropy", "attributes": ENTROPY | {"class_weights": weights}}
    found = derived([2], [node("i", "identity", "x", [2])], {}, loss, norm="3").loss.upper()
    assert isclose(found, 3 * sqrt(2) / (1 + exp(-sqrt(2) * 3)), rel_tol=1e-14)


def test_tokens_share_the_norm_of_the_logits() -> None:
    """Four pairs of logits of length 1/2 each, so of 1 together; one alone could have the length 1."""
    loss = {"name": "token_cross_entropy", "attributes": ENTROPY | {"reduce": "sum", "ignore": None}}
    found = derived([4, 2], [node("i", "identity", "x", [4, 2])], {}, loss, norm="1").loss.upper()
    attained, alone = (2 * sqrt(2) / (1 + exp(-sqrt(2) * length)) for length in (0.5, 1.0))
    assert attained <= found < alone


def cut(name: str, start: int, stop: int) -> Json:
    return node(name, "slice", "x", [stop - start], axis=0, start=start, stop=stop)


def row(name: str, operand: str, count: int) -> Json:
    return node(name, "embedding", operand, [count, 2], {"table": f"{name}.t"}, entries=9, width=2)


def test_parts_of_the_tokens_select_rows() -> None:
    """Three tokens of rows ≤ 2: the norm is 2√3, κ = √3. Two others of rows ≤ 1: √2 and √2."""
    nodes = [cut("a", 0, 3), cut("b", 3, 5), row("r", "a", 3), row("s", "b", 2)]
    nodes += [flat("f", "r", 6), flat("g", "s", 4), node("c", "concat", "f g", [10], axis=0)]
    tables = {"r.t": weight([9, 2], "rows", "2"), "s.t": weight([9, 2], "rows", "1")}
    found = derived([5], nodes, tables, norm=None)
    assert isclose(found.extents["c"].X.upper(), sqrt(12 + 2), rel_tol=1e-15)
    k = sqrt(10)  # the sum over ten classes
    assert isclose(found.gradient["r.t"].upper(), k * sqrt(3), rel_tol=1e-15)
    assert isclose(found.gradient["s.t"].upper(), k * sqrt(2), rel_tol=1e-15)


@pytest.mark.parametrize(
    "nodes",
    [
        [cut("a", 0, 3), node("h", "tanh", "a", [3])],
        [cut("a", 0, 3), dense("h", "a", 2)],
        [cut("a", 0, 3), cut("b", 3, 5), node("h", "concat", "a b", [5], axis=0)],
        [cut("a", 0, 3), node("i", "identity", "a", [3]), row("h", "i", 3)],
        [cut("a", 0, 3), row("r", "a", 3), flat("f", "r", 6), row("h", "f", 6)],
    ],
    ids=["a function", "a layer", "a merge", "no mover of tokens", "rows for tokens"],
)
def test_tokens_are_no_numbers_anywhere(nodes: list[Json]) -> None:
    tables = {f"{one}.t": weight([9, 2], "rows") for one in "rh"} | {"h.w": weight([2, 3])}
    used = {name for one in nodes for name in one["parameters"].values()}
    with pytest.raises(RuleError, match="an op of numbers takes tokens, or an op of tokens takes numbers"):
        derived([5], nodes, {name: tables[name] for name in used}, norm=None)


def test_tokens_are_no_logits() -> None:
    with pytest.raises(RuleError, match="the output is tokens"):
        derived([5], [cut("a", 0, 3)], {}, norm=None)


def test_attention_of_even_weights() -> None:
    roles = {role: f"a.{role}" for role in ("query", "key", "value", "output")}
    nodes = [
        node("a", "attention", "x", [3, 4], roles, heads=2, causal=False, dropout="0"),
        flat("f", "a", 12),
    ]
    found = derived([3, 4], nodes, {name: weight([4, 4], radius="1") for name in roles.values()}, norm="1")
    # m² = 1/2, d = 2, s = √(1/2)/√2 = 1/2; p² = 3/(1 + 2/e)
    p = sqrt(3 / (1 + 2 * exp(-1)))
    assert isclose(found.extents["a"].X.upper(), min(sqrt(6), p), rel_tol=1e-14)
    assert isclose(found.nodes["a"].kappa["query"].upper(), 0.5 / sqrt(2), rel_tol=1e-14)
    context = p + sqrt(0.5) * min(p, sqrt(0.5)) / sqrt(2)
    assert isclose(found.nodes["a"].slopes[0].upper(), 0.5 / sqrt(2) + context, rel_tol=1e-14)


def test_a_gate_over_positions() -> None:
    nodes = [
        node("m", "reduce_mean", "x", [2, 1, 1], axes=[1, 2], keep=True),
        node("g", "sigmoid", "m", [2, 1, 1]),
        node("s", "multiply", "x g", [2, 3, 3]),
        flat("f", "s", 18),
    ]
    found = derived([2, 3, 3], nodes, {}, norm="3")
    gate = min(0.25 * 1 + 0.5, 1)  # mean of nine entries: norm 1; the largest entry likewise
    assert isclose(found.nodes["s"].slopes[0].upper(), min(1.0, 0.25 * 1 + 0.5), rel_tol=1e-15)
    assert found.nodes["s"].slopes[1].upper() == 3.0
    assert isclose(found.extents["s"].X.upper(), 3 * gate, rel_tol=1e-15)


def test_norms_of_averages_are_proved_and_not_believed() -> None:
    apart = averages((8, 4, 2, 2, 1, (0, 0)), "padding")
    assert norm_within(apart, Fraction(1, 2))
    assert not norm_within(apart, Fraction(1, 2) - Fraction(1, 10**9))
    overlapping = averages((9, 4, 3, 2, 1, (0, 0)), "padding")  # tridiagonal Gram matrix (3, 1)/9, of four rows
    norm = (3 + 2 * (1 + sqrt(5)) / 4) / 9
    assert norm_within(overlapping, Fraction(norm) + Fraction(1, 10**9))
    assert not norm_within(overlapping, Fraction(norm) - Fraction(1, 10**9))


def test_adaptive_windows_overlap_by_what_does_not_divide() -> None:
    half, third = Fraction(1, 2), Fraction(1, 3)
    assert adaptive(5, 3) == [{0: half, 1: half}, dict.fromkeys((1, 2, 3), third), {3: half, 4: half}]


def test_interpolation_is_that_of_torch() -> None:
    import torch

    for mode in ("bilinear", "bicubic"):
        for aligned in (False, True):
            matrix = interpolation(5, 3, mode, aligned)
            eye = torch.eye(5, dtype=torch.float64).reshape(5, 1, 5, 1).expand(5, 1, 5, 2).contiguous()
            out = torch.nn.functional.interpolate(eye, size=(15, 2), mode=mode, align_corners=aligned)[:, 0, :, 0]
            ours = torch.tensor([[float(row.get(j, 0)) for row in matrix] for j in range(5)], dtype=torch.float64)
            assert torch.allclose(out, ours, atol=1e-12), (mode, aligned)
