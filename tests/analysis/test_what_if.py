"""What if: totals of changed models, against numbers derived by hand and the changed models written out."""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lipcompile_verify.windows import joint

from lipcompile.analysis import changes as what_if
from lipcompile.analysis.changes import Change, changes, dominating
from lipcompile.analysis.changes.edit import Patch, applied, rebuild
from lipcompile.cli.shared.signals import gains, signals
from lipcompile.core.backend import find
from lipcompile.core.derivation import Analysis
from lipcompile.core.graph import Graph, ParameterChoice
from lipcompile.core.record import Constraint, NoAttributes
from lipcompile.frontends.options import ModelOptions
from lipcompile.ops.conv.rules import Conv
from lipcompile.ops.linear.rules import Dense
from lipcompile.ops.merge.rules import Sum
from lipcompile.ops.table import OP_BY_NAME
from lipcompile.pipeline import check, load
from tests.analysis.test_bounds import bounded_logits
from tests.attacks.graphs import random_graph
from tests.networks import Network, certified

ONE, HALF = Fraction(1), Fraction(1, 2)
counter = itertools.count()


def analysed(folder: Path, body: str) -> Analysis:
    path = folder / f"model{next(counter)}.lip"
    path.write_text(f"model net {{ {body} }}")
    derivation = check(str(path))
    assert derivation.ok, derivation.diagnostics
    assert derivation.analysis is not None
    return derivation.analysis


def loaded(folder: Path, body: str) -> Graph:
    """The graph of a model, without its formulas: faster."""
    path = folder / f"model{next(counter)}.lip"
    path.write_text(f"model net {{ {body} }}")
    found = load(str(path), ModelOptions())
    assert found.graph is not None, found.diagnostics
    return found.graph


def found_in(folder: Path, body: str) -> dict[tuple[str, str], Change]:
    """The changes of a model, by place and description; each total is that of the factor."""
    analysis = analysed(folder, body)
    found = changes(analysis.graph)
    assert list(found) == sorted(found, key=lambda change: change.factor)
    assert len(found) <= 12
    for change in found:
        assert analysis.total.value is not None
        assert change.factor == pytest.approx(change.total / analysis.total.value, rel=1e-12)
        assert change.factor < 1
    return {(change.place, change.description): change for change in found}


def tight(total: float, truth: float) -> bool:
    """Certified: not below what was derived by hand, but for the rounding of that, and close to it."""
    return truth * (1 - 1e-15) <= total <= truth * (1 + 1e-14)


# By hand. hinge has L = 1, so that K of a weight is X·(gain of what follows), that of a bias the gain alone.

PLAIN = "input x: tensor[4], norm <= 1\n dense(4) dense(4) dense(1) loss hinge"
SUMS = "input x: tensor[4], norm <= 1\n dense(4) repeat 4 { residual(KIND) { dense(4) relu } } dense(1) loss hinge"
BIASED = "input x: tensor[4], norm <= 1\n a = dense(4, bias=0.5)\n b = dense(1)\n loss hinge"
IMAGE = "input x: tensor[1, 6, 6], norm <= 1\n c = conv2d(2, kernel=3, padding=1) flatten d = dense(1) loss hinge"
POOLED = "input x: tensor[1, 8, 8], norm <= 1\n c = conv2d(2, kernel=1) p = POOL flatten d = dense(1) loss hinge"
ALL = "dense.weight, dense_2.weight, dense_3.weight"
SPECTRAL = "constraint=spectral(0.5) instead of spectral(1)"

BY_HAND = {
    "the input's norm": (PLAIN, "x", "norm <= 0.5 instead of 1", math.sqrt(3) / 2),
    # K of a layer has the constraints of the two others as factors.
    "all constraints": (PLAIN, ALL, f"{SPECTRAL}, 3 times", math.sqrt(3) / 4),
    "one constraint": (PLAIN, "dense.weight", SPECTRAL, math.sqrt(1 + 1 / 4 + 1 / 4)),
    # Sums: K = 16 in the stem and the head, 2^j·2^(3-j) in block j. Means: 1, and 1/2 in each block.
    "means for sums": (
        SUMS.replace("KIND", "add"),
        "add, add_2, add_3 and 1 more",
        "mean instead of add, 4 times",
        math.sqrt(1 + 4 / 4 + 1),
    ),
    "a smaller share": (
        SUMS.replace("KIND", "mean"),
        "mean, mean_2, mean_3 and 1 more",
        "residual(convex(0.25)) instead of a share of 0.5, 4 times",
        math.sqrt(1 + 4 / 16 + 1),
    ),
    # K: 1 for the first weight and the bias, 3/2 for the second weight.
    "no bias": (BIASED, "a.bias", "without this bias", math.sqrt(2)),
    "half the bias": (BIASED, "a.bias", "bias=0.25 instead of 0.5", math.sqrt(1 + 1 + 1.25**2)),
    "a frozen layer": (BIASED, "b", "frozen: b.weight not trained", math.sqrt(2)),
    "clipped": (
        BIASED,
        "b",
        "clip_gradient(0.5) before the loss, which sends back up to L",
        math.sqrt(1 + 1 + 1.5**2) / 2,
    ),
    "clipped by less": (
        BIASED.replace("loss", "clip_gradient(0.25) loss"),
        "clip_gradient_",
        "clip_gradient(0.125) instead of clip_gradient(0.25)",
        math.sqrt(1 + 1 + 1.5**2) / 8,
    ),
    # An entry is read by (3, 2, 1) windows on an axis: κ = (3, 2, 1)·X.
    "stride 2": (IMAGE, "c", "conv2d stride=2 instead of 1", math.hypot(joint(6, 3, 3, 2, 1, (1, 1)), 1)),
    "stride 3": (IMAGE, "c", "conv2d stride=3 instead of 1: windows no longer overlap", math.sqrt(1 + 1)),
    # The norm of the map is up to the joint bound of the windows times the Frobenius norm of its kernel.
    "spectral for frobenius": (
        IMAGE.replace("padding=1", "padding=1, constraint=frobenius(1)"),
        "c.weight",
        "constraint=spectral(1) instead of frobenius(1)",
        math.hypot(joint(6, 6, 3, 1, 1, (1, 1)), 1),
    ),
    # An entry is in (2, 1) windows on an axis: the pool stretches by (2, 1). Averages of 2×2 shrink by 1/2.
    "a narrow pool": (
        POOLED.replace("POOL", "max_pool(3, stride=2, padding=1)"),
        "p",
        "max_pool kernel=2 instead of 3, without padding: windows no longer overlap",
        math.sqrt(1 + 1),
    ),
    "pool steps": (
        POOLED.replace("POOL", "l2_pool(2, stride=1)"),
        "p",
        "l2_pool stride=2 instead of 1: windows no longer overlap",
        math.sqrt(1 + 1),
    ),
    "averages": (
        POOLED.replace("POOL", "max_pool(2)"),
        "p",
        "avg_pool instead of max_pool",
        math.sqrt(1 / 4 + 1 / 4),
    ),
    "a mean for a sum": (
        "input x: tensor[4, 4], norm <= 1\n d = dense(4) r = reduce_sum(axes=(0,)) e = dense(1) loss hinge",
        "r",
        "reduce_mean instead of reduce_sum",
        math.sqrt(1 / 4 + 1 / 4),
    ),
    # Of norm min(2, √4); the slope was 100.
    "a floor": (
        "input x: tensor[4], norm <= 1\n d = dense(4) n = layer_norm(eps=0.0001) e = dense(1) loss hinge",
        "n",
        "layer_norm floor=0.5 instead of eps=0.0001",
        math.sqrt(4 + 4),
    ),
    "a higher floor": (
        "input x: tensor[4], norm <= 1\n d = dense(4) n = layer_norm(floor=0.25) e = dense(1) loss hinge",
        "n",
        "layer_norm floor=1 instead of 0.25",
        math.sqrt(1 + 1),
    ),
    "no dropout": (
        "input x: tensor[4], norm <= 1\n d = dense(4) z = dropout(0.5) e = dense(1) loss hinge",
        "z",
        "without dropout(0.5)",
        math.sqrt(1 + 1),
    ),
    "no random depth": (
        "input x: tensor[4], norm <= 1\n d = dense(4) z = grouped_dropout(0.5) e = dense(1) loss hinge",
        "z",
        "without grouped_dropout(0.5)",
        math.sqrt(1 + 1),
    ),
    "relu": (
        "input x: tensor[4], norm <= 1\n d = dense(4) z = selu e = dense(1) loss hinge",
        "z",
        "relu instead of selu",
        math.sqrt(1 + 1),
    ),
    "a table": (
        "input t: tokens[4]\n e = embedding(9, 4, bound=3) flatten d = dense(1) loss hinge",
        "e.table",
        "bound=1.5 instead of 3",
        math.sqrt(4 + (2 * 1.5) ** 2),  # κ = √4 of the table; the dense layer reads 4 rows
    ),
    "a temperature": (
        "input x: tensor[4], norm <= 1\n d = dense(3) loss cross_entropy(temperature=2)",
        "cross_entropy",
        "temperature=1 instead of 2",
        bounded_logits(3, 1),
    ),
    "a loss divided by its temperature": (
        "input x: tensor[4], norm <= 1\n d = dense(3) loss cross_entropy(temperature=2, normalise=false)",
        "cross_entropy",
        "normalise=true instead of false",
        bounded_logits(3, 2),
    ),
    "a loss not divided by its temperature": (
        "input x: tensor[4], norm <= 1\n d = dense(3) loss cross_entropy(temperature=0.25)",
        "cross_entropy",
        "normalise=false instead of true",
        bounded_logits(3, 0.25) / 4,
    ),
    "a mean loss": (
        "input x: tensor[4], norm <= 1\n d = dense(3) loss absolute_error(reduce=sum)",
        "absolute_error",
        "reduce=mean instead of sum",
        1 / math.sqrt(3),
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str, tmp_path: Path) -> None:
    body, place, description, total = BY_HAND[case]
    found = found_in(tmp_path, body)
    assert (place, description) in found, [*found]
    assert tight(found[place, description].total, total) or "loss" in case or "temperature" in case
    assert found[place, description].total == pytest.approx(total, rel=1e-9)


def test_kinds_say_what_happens_to_gradients(tmp_path: Path) -> None:
    kinds = {change.description: change.kind for change in found_in(tmp_path, BIASED).values()}
    assert kinds["norm <= 0.5 instead of 1"] == "scale"
    assert kinds["without this bias"] == "structure"
    assert kinds["frozen: b.weight not trained"] == "training"


# What is not offered


@pytest.mark.parametrize(
    "body",
    [
        "input x: tensor[4]\n dense(2) loss cross_entropy",
        "input x: tensor[4], norm <= 1\n dense(2)",
        "param c: real\n input x: tensor[4], norm <= 1\n dense(2, constraint=spectral(c)) dense(1) loss hinge",
        "input x: tensor[4], norm <= 1\n frozen { dense(2) } loss cross_entropy",
    ],
    ids=["no input norm", "no loss", "an open constraint", "nothing trained"],
)
def test_nothing_is_said_of_an_unknown_total(tmp_path: Path, body: str) -> None:
    assert changes(analysed(tmp_path, body).graph) == ()


def test_a_total_beyond_doubles_can_still_be_fixed(tmp_path: Path) -> None:
    """Three norms stretch by 10^150 each; with floors each doubles, and makes vectors of norm √4 at most."""
    blocks = "dense(4) layer_norm(eps=1e-300) " * 3
    body = f"input x: tensor[4], norm <= 1\n {blocks} dense(1) loss hinge"
    analysis = analysed(tmp_path, body)
    assert analysis.total.value is None
    first = changes(analysis.graph)[0]
    assert first.description.startswith("layer_norm floor=0.5 instead of eps=")
    assert first.description.endswith(", 3 times")
    assert tight(first.total, math.sqrt(8**2 + (2 * 4) ** 2 + (2 * 2) ** 2 + 2**2))
    assert first.factor < 1e-300


def test_the_cells_of_a_recurrent_layer_are_not_taken_apart(tmp_path: Path) -> None:
    body = "input x: tensor[3, 4], norm <= 1\n lstm(4, bias=0.5) dense(1) loss hinge"
    found = found_in(tmp_path, body)
    assert not any("mean instead of add" in description for _, description in found)
    assert ("lstm_input.weight, lstm_state.weight", f"{SPECTRAL}, 2 times") in found  # one argument


def test_the_matrices_of_attention_are_one_argument(tmp_path: Path) -> None:
    body = "input x: tensor[3, 4], norm <= 1\n a = attention(2) flatten d = dense(1) loss hinge"
    assert ("a", SPECTRAL) in found_in(tmp_path, body)


def test_two_branches_are_summed_by_their_mean(tmp_path: Path) -> None:
    body = "input x: tensor[4], norm <= 1\n branch { dense(4) } { dense(4) } -> add dense(1) loss hinge"
    found = found_in(tmp_path, body)
    assert tight(found["add", "mean instead of add"].total, math.sqrt(1 / 4 + 1 / 4 + 1))


def test_a_shared_weight_is_changed_for_all_its_users(tmp_path: Path) -> None:
    """K of the shared weight: 1·u + u·1 = 2u, that of the last layer u²."""
    body = 'input x: tensor[4], norm <= 1\n a = dense(4, share="w") b = dense(4, share="w") dense(1) loss hinge'
    found = found_in(tmp_path, body)
    assert tight(found["a.weight", SPECTRAL].total, math.sqrt(1 + 1 / 16))


# Copies, large graphs, progress


def test_copies_are_changed_together_as_they_are_written_once(tmp_path: Path) -> None:
    found = found_in(tmp_path, SUMS.replace("KIND", "mean"))
    assert ("mean", "residual(convex(0.25)) instead of a share of 0.5") not in found
    assert any(place.startswith("dense_2.weight, dense_3.weight") for place, _ in found)


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    changes(analysed(tmp_path, BIASED).graph, lambda *seen: told.append(seen))
    assert [done for _, done, _ in told] == [*range(1, len(told) + 1)]
    assert {total for _, _, total in told} == {len(told)}
    assert told[0][0] == "x"


def test_in_a_large_graph_dominating_places_are_tried_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = "\n".join(f"d{i} = dense(4, bias=0.25)" for i in range(6))
    graph = analysed(tmp_path, f"input x: tensor[4], norm <= 1\n {layers}\n dense(1) loss hinge").graph
    tried: list[str] = []
    monkeypatch.setattr(what_if, "_LARGE", 5)
    found = changes(graph, lambda place, *_: tried.append(place))
    single = {place for place in tried if place.endswith((".weight", ".bias")) and "," not in place}
    # The norm grows by 1/4 with every layer, and with it K of the next weight.
    assert single == {"dense.weight", "d5.weight", "d4.weight", "d5.bias", "d4.bias"}
    assert any(change.place.endswith("more") for change in found)


# Shares


def test_shares_are_of_squares_and_copies_count_together(tmp_path: Path) -> None:
    """K: 16, four times 8, 16."""
    shares = dominating(analysed(tmp_path, SUMS.replace("KIND", "add")))
    assert [share.names for share in shares] == [
        ("dense.weight",),
        ("dense_2.weight", "dense_3.weight", "dense_4.weight", "dense_5.weight"),
        ("dense_6.weight",),
    ]
    assert [share.bound for share in shares] == [16, 8, 16]
    assert [share.share for share in shares] == pytest.approx([1 / 3] * 3, rel=1e-12)


def test_the_largest_share_is_first(tmp_path: Path) -> None:
    shares = dominating(analysed(tmp_path, BIASED))
    assert [share.names[0] for share in shares] == ["b.weight", "a.weight", "a.bias"]
    assert [share.share for share in shares] == pytest.approx([2.25 / 4.25, 1 / 4.25, 1 / 4.25])


def test_unknown_bounds_have_no_shares(tmp_path: Path) -> None:
    assert dominating(analysed(tmp_path, "input x: tensor[4]\n dense(1) loss hinge")) == ()


# Signal over noise

SCALED = "input x: tensor[4], norm <= 1\n a = dense(4) b = dense(1) loss hinge"


def test_halving_what_gradients_are_made_of_is_no_improvement(tmp_path: Path) -> None:
    """Gradients of a and b are w_b·x and W_a·x, their bounds c_b·X_0 and c_a·X_0; |w_b·W_a·x| <= 1 keeps the slope
    of hinge at 1. Half the input, or half of both weights, is half of every gradient and half of both bounds.
    """
    graph = analysed(tmp_path, SCALED).graph
    found = {change.description: change for change in changes(graph, measure=gains(graph))}
    for description in ("norm <= 0.5 instead of 1", "constraint=spectral(0.5) instead of spectral(1), 2 times"):
        assert found[description].factor == pytest.approx(0.5)
        assert found[description].gain == pytest.approx(1, abs=1e-5)
    # By the bound alone they would be the best.
    assert changes(graph)[0].factor == pytest.approx(0.5)
    assert next(iter(found)).startswith("frozen")


def test_the_gain_of_a_layer_that_is_not_trained(tmp_path: Path) -> None:
    """Noise has the norm √2·√20·σ/b, of 20 weights; with a layer of 16 frozen 1·√4·σ/b. Its signal is left out."""
    analysis = analysed(tmp_path, SCALED)
    found = {change.place: change for change in changes(analysis.graph, measure=gains(analysis.graph))}
    derivation = check(str(next(tmp_path.glob("*.lip"))))
    signal = signals(derivation, find())
    assert signal.total.noise == pytest.approx(40**0.5 / 512)
    left = signal.parameters["b.weight"].mean / signal.total.mean
    assert found["a"].gain == pytest.approx(10**0.5 * left, rel=1e-5)


def test_gains_rank_before_bounds_and_unknown_gains_last(tmp_path: Path) -> None:
    """The measure likes small inputs most, does not know clips, and is not told of anything else."""
    graph = analysed(tmp_path, SCALED).graph

    def measure(changed: Graph) -> float | None:
        if changed.nodes[-1].op.name == "clip_gradient":
            return None
        return 3.0 if changed.input.norm == HALF else 2.0

    found = changes(graph, measure=measure)
    assert (found[0].place, found[0].gain) == ("x", 1.5)
    assert found[-1].gain is None
    assert found[-1].description.startswith("clip_gradient")
    between = found[1:-1]
    assert {change.gain for change in between} == {1.0}
    assert list(between) == sorted(between, key=lambda change: change.factor)
    assert [change.gain for change in changes(graph, measure=lambda _: None)] == [None] * len(changes(graph))


def test_large_models_are_not_measured(tmp_path: Path) -> None:
    wide = analysed(tmp_path, "input x: tensor[1500], norm <= 1\n dense(1500) dense(1) loss hinge").graph
    assert gains(wide) is None


# Rebuilding


def imported(method: str = "") -> Graph:
    """A convolution and a dense layer with weights that were read from a file."""
    net = Network((1, 6, 6))
    padding = ((1, 1), (1, 1))
    kernel = ParameterChoice(Constraint("spectral", ONE, method), initial=np.ones((2, 1, 3, 3)))
    net.add("conv", Conv(2, (3, 3), (1, 1), padding, (1, 1)), weight=kernel)
    net.flatten()
    weight = ParameterChoice(Constraint("spectral", ONE), initial=np.ones((3, 72)))
    net.add("dense", Dense(3), weight=weight)
    return net.finish()


def strided(graph: Graph, name: str = "conv") -> Graph | None:
    conv = graph.node(name).attributes
    changed = Conv(conv.channels, conv.kernel, (2, 2), conv.padding, conv.dilation)
    return rebuild(graph, {name: (OP_BY_NAME["conv"], changed)})


def test_shapes_behind_a_change_are_inferred_again() -> None:
    net = Network((1, 6, 6))
    net.conv(2)
    net.flatten()
    net.dense(3)
    changed = strided(net.finish())
    assert changed is not None
    changed.verify()
    assert [node.shape for node in changed.nodes] == [(2, 3, 3), (18,), (3,)]
    assert changed.parameters["dense.weight"].shape == (3, 18)


def test_an_imported_weight_keeps_its_shape() -> None:
    assert strided(imported()) is None


def test_a_certified_norm_is_that_of_one_map() -> None:
    graph = imported(method="a grid of frequencies")
    assert rebuild(graph, {"flatten": (OP_BY_NAME["flatten"], NoAttributes())}) is not None
    kept = {"conv": (OP_BY_NAME["conv"], graph.node("conv").attributes)}
    assert rebuild(graph, kept) is None


def test_what_the_rules_refuse_is_left_out() -> None:
    net = Network((1, 6, 6))
    start = net.end
    net.conv(1)
    net.add("add", Sum((ONE, ONE)), start, net.end)
    net.flatten()
    net.dense(3)
    assert strided(net.finish()) is None


def test_the_output_keeps_its_shape() -> None:
    net = Network((1, 6, 6))
    net.conv(2)
    assert strided(net.finish(loss=None)) is None


@pytest.mark.parametrize("seed", range(12))
def test_changed_graphs_are_well_typed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random graphs with ops of all families: sites and parameters have the shapes that the rules give."""

    def checked(graph: Graph, patch: Patch) -> Graph | None:
        changed = applied(graph, patch)
        if changed is not None:
            assert_typed(changed)
        return changed

    monkeypatch.setattr(what_if, "applied", checked)
    assert all(change.factor < 1 for change in changes(random_graph(seed)))


def assert_typed(graph: Graph) -> None:
    graph.verify()
    for node in graph.nodes:
        assert node.site.inputs == tuple(graph.shape(operand) for operand in node.inputs)
        assert node.op.shape(node.attributes, node.site.inputs) == node.shape
        for role, name in node.parameters.items():
            shape = node.op.parameter(role).shape(node.attributes, node.site.inputs)
            assert graph.parameters[name].shape == shape


# Against the changed model, written out


def written(pattern: str, program: str, place: str, description: str) -> str | None:
    """Write "ARGUMENT=new instead of old" into the layer of that name; None if it does not say so."""
    match = re.fullmatch(pattern, description)
    if match is None:
        return None
    argument, new, old = match.groups()
    layer = re.escape(place.partition(".")[0])
    text, count = re.subn(rf"({layer} = [^;]*?{argument}=){re.escape(old)}", rf"\g<1>{new}", program, count=1)
    assert count == 1, (place, description)
    return text


def rewritten(program: str, change: Change) -> str:
    """Apply a change to the text of a model, as a reader would."""
    text, _, times = change.description.partition(", ")
    places = change.place.split(", ") if times else [change.place]
    for place in places:
        program = once(program, place, text)
    return program


def once(program: str, place: str, text: str) -> str:
    if match := re.fullmatch(r"norm <= (\S+) instead of (\S+)", text):
        return program.replace(f"norm <= {match[2]}\n", f"norm <= {match[1]}\n")
    if text == "without this bias":
        return re.sub(rf"({place.partition('.')[0]} = [^;]*?), bias=[0-9.]+", r"\1", program, count=1)
    if text.startswith("frozen: "):
        return re.sub(rf"({place} = [^;]*;)", r"frozen { \1 }", program, count=1)
    if match := re.fullmatch(r"(clip_gradient\(\S+\)) before the loss.*", text):
        return program.replace("loss ", f"{match[1]}; loss ")
    if match := re.fullmatch(r"mean instead of add", text):
        index = int(place.removeprefix("add").removeprefix("_") or 1)
        before = list(re.finditer(r"residual\(\w+\)", program))[index - 1]
        return f"{program[: before.start()]}residual(mean){program[before.end() :]}"
    if match := re.fullmatch(r"(\w+) instead of (\w+)", text):
        return re.sub(rf"({place} = ){match[2]}", rf"\g<1>{match[1]}", program, count=1)
    if match := re.fullmatch(r"(temperature|normalise)=(\S+) instead of (\S+)", text):
        return program.replace(f"{match[1]}={match[3]}", f"{match[1]}={match[2]}")
    text = re.sub(r"^conv2d |: windows no longer overlap$", "", text)
    changed = written(r"(\w+)=(\S+) instead of (\S+)", program, place, text)
    assert changed is not None, (place, text)
    return changed


NUMBERS = st.sampled_from(["0.25", "0.5", "1", "1.5", "2"])


@st.composite
def layers(draw: st.DrawFn, name: str, kind: str, width: int, stride: str = "1") -> str:
    """A layer with all its arguments written out, so that each can be written differently."""
    constraint = draw(st.sampled_from(["spectral", "frobenius"]))
    bias = draw(st.sampled_from(["", ", bias=0.5", ", bias=1"]))
    window = f", kernel=3, stride={stride}, padding=1" if kind == "conv2d" else ""
    return f"{name} = {kind}({width}{window}, constraint={constraint}({draw(NUMBERS)}){bias});"


@st.composite
def programs(draw: st.DrawFn) -> str:
    lines = [f"input x: tensor[2, 8, 8], norm <= {draw(NUMBERS)}"]
    lines.append(draw(layers("c1", "conv2d", 3, draw(st.sampled_from("12")))))
    if draw(st.booleans()):
        lines.append(f"p1 = {draw(st.sampled_from(['max_pool', 'l2_pool', 'scaled_avg_pool']))}(2);")
    lines += ["flatten", draw(layers("d1", "dense", 4))]
    for index in range(draw(st.integers(0, 3))):
        lines.append(f"residual(add) {{ {draw(layers(f'r{index}', 'dense', 4))} relu }}")
    lines.append(draw(layers("d2", "dense", 3)))
    normalise = draw(st.sampled_from(["true", "false"]))
    loss = st.sampled_from([f"cross_entropy(temperature={draw(NUMBERS)}, normalise={normalise})", "nll"])
    return "\n".join([*lines, f"loss {draw(loss)}"])


def assert_every_total(program: str, folder: Path) -> None:
    found = changes(loaded(folder, program))
    told = [change for change in found if not change.place.endswith(" more") and "every" not in change.description]
    assert told
    for change in told:
        graph = loaded(folder, rewritten(program, change))
        assert certified(graph).total.upper == pytest.approx(change.total, rel=1e-13), change


shared_folder = [HealthCheck.function_scoped_fixture]


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=shared_folder)
@given(program=programs())
def test_every_total_is_that_of_the_changed_model(program: str, tmp_path: Path) -> None:
    """Some 200 changes: each kind of them many times."""
    assert_every_total(program, tmp_path)


@pytest.mark.nightly
@settings(max_examples=300, deadline=None, suppress_health_check=shared_folder)
@given(program=programs())
def test_every_total_of_many_programs_is_that_of_the_changed_model(program: str, tmp_path: Path) -> None:
    assert_every_total(program, tmp_path)
