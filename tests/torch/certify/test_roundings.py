"""What rounding within one example may add to a bound: found at its largest, and paid for."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.certify.precision import _COUNTS, CONVENTIONS, long_sum_slack, rounding_slack, roundings
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import lipcompile
from lipcompile.emitters.torch.emit import emit
from lipcompile.ops.table import OPS


def built(body: str, folder: Any) -> Any:
    (folder / "model.lip").write_text(f"model m {{\n{body}\n}}\n")
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(emit(lipcompile.check(str(folder / "model.lip"))), "emitted.py", "exec"), space)
    return space["Model"]()


LARGE_IMAGE = """
    input x: tensor[1, 448, 448], norm <= 448.0
    conv2d(1, kernel=1, bias=1.0)
    {pool}
    {end}
    loss kr
"""
POOLS = ["global_avg_pool", "avg_pool(448)\n    flatten", "flatten"]


@pytest.mark.parametrize("pool", POOLS)
def test_a_large_image_of_one_colour_stays_within_what_noise_covers(pool: str, tmp_path: Any) -> None:
    """Every sum is over 448² equal terms, positive, and attains its bound: 1.00204 times it before."""
    module = built(LARGE_IMAGE.format(pool=pool, end="dense(1)"), tmp_path)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "bias" not in name:
                parameter.fill_(1.0)
    module.project_()
    covered = (1 + rounding_slack(torch.float32)) * (
        1 + long_sum_slack(module.certificate["graph"], torch.float32)
    )
    for value in (1 / 3, 0.7, 1.0):
        module.zero_grad()
        module.criterion(module(torch.full((1, 1, 448, 448), value)), torch.ones(1)).backward()
        for name, parameter in module.named_parameters():
            assert float(parameter.grad.double().norm()) <= module.bounds[name] * covered, (name, value)


def test_a_batch_whose_gradients_all_agree_is_not_refused(tmp_path: Any) -> None:
    """A refusal would depend on the data."""
    module = built(LARGE_IMAGE.replace("448", "64").format(pool="global_avg_pool", end="dense(1)"), tmp_path)
    with torch.no_grad():
        module.conv2d.weight.fill_(1.0)
        module.dense.weight.fill_(1.0)
    data = TensorDataset(torch.full((64, 1, 64, 64), 1.0), torch.ones(64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, optimizer, loader = PrivacyEngine().make_private(
            module=module,
            optimizer=SGD(module.parameters(), 0.0),
            data_loader=DataLoader(data, batch_size=64),
            noise_multiplier=1.0,
            sampling="fixed_size",
        )
        for x, y in loader:
            module.criterion(module(x), y).backward()
            optimizer.step()


def linear(terms: int) -> float:
    return 2 * (terms + math.sqrt(terms))


def test_roundings_are_counted_by_hand(tmp_path: Any) -> None:
    """2·(n + √n) for each linear map, and 16; √9 times that for a kernel of nine taps. On the way back from four
    for each logit, relu and flatten round nothing.
    """
    module = built(
        """
    input x: tensor[2, 6, 6], norm <= 1.0
    conv2d(4, kernel=3, padding=1)
    relu
    avg_pool(2)
    flatten
    dense(5)
    loss cross_entropy
    """,
        tmp_path,
    )
    expected = 4 * 5 + (linear(5) + 16) + (linear(4) + 16) + (3 * linear(36) + 16)
    assert roundings(module.certificate["graph"]) == pytest.approx(expected)


def test_the_operand_of_a_late_layer_counts(tmp_path: Any) -> None:
    module = built("input x: tensor[900], norm <= 1.0\ndense(9)\ndense(4)\nloss cross_entropy", tmp_path)
    expected = (linear(900) + 16) + (linear(4) + 16) + 4 * 4
    assert roundings(module.certificate["graph"]) == pytest.approx(expected)


def test_a_clip_may_be_what_is_not_reached_and_frozen_layers_hand_nothing_back(tmp_path: Any) -> None:
    """min(X, r) = X counts what X does."""
    module = built(
        """
    input x: tensor[9], norm <= 1.0
    frozen { dense(160) }
    clip_norm(1.0)
    dense(4)
    loss cross_entropy
    """,
        tmp_path,
    )
    expected = (linear(9) + 16) + 16 + (linear(4) + 16) + 4 * 4
    assert roundings(module.certificate["graph"]) == pytest.approx(expected)


def test_the_way_back_through_a_clip_is_a_sum_over_the_example(tmp_path: Any) -> None:
    """4·n, and 16."""
    module = built("input x: tensor[2], norm <= 1.0\ndense(50)\nclip_norm(1.0)\nloss multilabel_bce", tmp_path)
    expected = (linear(50) + 16) + (4 * 50 + 16) + 4 * 50
    assert roundings(module.certificate["graph"]) == pytest.approx(expected)


@pytest.mark.parametrize("op", ["softmax", "layer_norm(floor=1.0)", "center"])
def test_other_nodes_count_every_entry(op: str, tmp_path: Any) -> None:
    """At least four for each entry of an example."""
    module = built(f"input x: tensor[40], norm <= 1.0\ndense(40)\n{op}\ndense(3)\nloss cross_entropy", tmp_path)
    assert roundings(module.certificate["graph"]) >= linear(40) + linear(3) + 4 * 3 + 4 * 40


def counted(*nodes: dict[str, Any], inputs: tuple[int, ...] = (100,)) -> float:
    """Return the roundings up to the first node, a trained bias of the input, with one logit at the end."""
    first = {"name": "first", "op": "bias", "inputs": ["x"], "shape": inputs, "parameters": {"bias": "b"}}
    return roundings(
        {
            "input": {"name": "x", "shape": inputs},
            "nodes": [first, *({"parameters": {}, "attributes": {}, **node} for node in nodes)],
            "parameters": {"b": {"shape": [1], "trainable": True}, "c": {"shape": [1], "trainable": True}},
            "output": nodes[-1]["name"],
        }
    )


def node(name: str, op: str, inputs: list[str], shape: tuple[int, ...], **others: Any) -> dict[str, Any]:
    return {"name": name, "op": op, "inputs": inputs, "shape": shape, **others}


def test_products_have_the_excess_of_both_operands() -> None:
    """The first node has 16; the product of it with itself 32 and its own 2·(2 + √2) + 16; what it hands back 16
    more than what arrives and its own 2·(1 + 1) + 16, and two cotangents are added.
    """
    square = node("square", "multiply", ["first", "first"], (100,))
    assert counted(square) == pytest.approx(4 * 100 + (4 + 16 + 16) + 1 + 16)
    last = node("last", "bias", ["square"], (100,), parameters={"bias": "c"})
    assert counted(square, last) == pytest.approx(4 * 100 + 16 + (2 * 16 + linear(2) + 16))


def test_the_larger_excess_of_two_operands_counts() -> None:
    """That of 100 columns, 2·(100 + 10) + 16: in what is computed of both, and in a parameter that meets both."""
    product = node("product", "dense", ["x"], (100,))
    both = node("both", "add", ["product", "first"], (100,))
    last = node("last", "bias", ["both"], (100,), parameters={"bias": "c"})
    excess = linear(100) + 16
    assert counted(product, both, last) == pytest.approx(4 * 100 + 16 + (excess + linear(2) + 16))
    assert counted(product, both | {"parameters": {"bias": "c"}}) == pytest.approx(4 * 100 + (4 + 16) + excess)


def test_broadcast_operands_collect_sums() -> None:
    """2·(P + √P) on the way back to an operand of which there are P copies, not fewer for the other."""
    wide = node("wide", "add", ["first", "x"], (30, 100))
    assert counted(wide) == pytest.approx(4 * 3000 + (linear(30) + 16) + 16)
    narrow = node("narrow", "slice", ["first"], (1,))
    both = node("both", "add", ["narrow", "first"], (100,))
    assert counted(narrow, both) == pytest.approx(4 * 100 + (linear(100) + 16) + 1 + 16)


def test_products_of_matrices_sum_over_rows_and_columns() -> None:
    """Forward over 40 columns; back over the larger of 7 rows and 9 columns; the other operand is exact."""
    other = node("other", "slice", ["x"], (40, 9))
    product = node("product", "matmul", ["first", "other"], (7, 9))
    assert counted(other, product, inputs=(7, 40)) == pytest.approx(4 * 63 + (linear(9) + 16 + 16) + 16)


def test_attention_sums_over_its_widest_matrix() -> None:
    for width, shape in ((48, (3, 6)), (6, (3, 48))):
        attention = node("attention", "attention", ["first"], shape)
        least = 4 * math.prod(shape) + 2 * linear(48) + 16 * (3 + width)
        assert counted(attention, inputs=(3, width)) >= least


@pytest.mark.parametrize(
    ("op", "faster"), [("relu", 0), ("gelu", 0.31), ("silu", 0.28), ("mish", 0.22), ("hard_swish", 0.5)]
)
def test_what_grows_faster_than_its_operand_makes_more_of_its_excess(op: str, faster: float) -> None:
    """Of the excess of a matrix of 2500 columns, 2·(2500 + 50) + 16, and of 16 of a bias."""
    nodes = [
        node("product", "dense", ["first"], (3,)),
        node("grown", op, ["product"], (3,)),
        node("last", "dense", ["grown"], (1,), parameters={"weight": "c"}),
    ]
    before = 16 + linear(2500) + 16
    own = 0 if op == "relu" else 16
    assert counted(*nodes, inputs=(2500,)) == pytest.approx(before * (1 + faster) + own + (linear(1) + 16) + 4)


def test_a_derivative_that_grows_with_its_operand_has_its_excess() -> None:
    swish = node("swish", "hard_swish", ["first"], (100,))
    assert counted(swish) == pytest.approx(4 * 100 + (16 + 16) + 16)


def test_what_ends_in_a_ball_has_no_excess() -> None:
    nodes = [
        node("ball", "whitened_patches", ["first"], (100,)),
        node("last", "bias", ["ball"], (100,), parameters={"bias": "c"}),
    ]
    assert counted(*nodes) == pytest.approx(4 * 100 + 16 + 16)


def test_cotangents_of_the_output_are_added_to_that_of_the_loss() -> None:
    """The output is read twice besides."""
    dead = [node(f"dead{i}", "slice", ["last"], (1,)) for i in range(2)]
    nodes = [node("last", "bias", ["first"], (100,)), *dead]
    graph_end = counted(*nodes, node("end", "identity", ["last"], (100,)))
    assert graph_end == pytest.approx(4 * 100 + 2 + 16 + 16)


def test_every_op_is_counted_or_named_as_a_convention() -> None:
    assert {op.name for op in OPS} == set(_COUNTS) | set(CONVENTIONS)
    proved = set(_COUNTS) - set(CONVENTIONS)
    assert proved.isdisjoint(CONVENTIONS)
    assert not {"softmax", "attention", "layer_norm"} & proved


@pytest.mark.parametrize("terms", [65, 1000, 30_000])
def test_a_linear_map_stretches_by_no_more_than_is_counted(terms: int) -> None:
    """Rows of equal entries, whose partial sums are as large as they can be."""
    for outputs in (1, 3):
        weight = torch.full((outputs, terms), 1 / math.sqrt(terms * outputs))
        x = torch.full((2, terms), 0.1)
        exact = x.double() @ weight.double().T
        found = torch.nn.functional.linear(x, weight)
        assert float((found.double() - exact).norm() / exact.norm()) <= linear(terms) * 2.0**-24
