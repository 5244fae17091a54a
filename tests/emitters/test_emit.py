"""Emitted modules: they run, they match their derivation, and their gradients stay within it."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from lipcompile_torch import LipschitzModule
from torch import Tensor

from lipcompile.certificates import certificate
from lipcompile.core.derivation import Derivation
from lipcompile.core.names import RESERVED
from lipcompile.diagnostics import InputError
from lipcompile.emitters.torch.emit import class_name, emit
from lipcompile.emitters.torch.expressions import EXPRESSIONS, HOLDERS, LAYERS
from lipcompile.frontends.options import ModelOptions
from lipcompile.ops.table import OPS
from lipcompile.pipeline import check

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.lip"))
# What examples leave open.
OPEN = {"deep": {"depth": Fraction(3)}}
counter = itertools.count()


def derive(folder: Path, body: str, options: ModelOptions | None = None) -> Derivation:
    path = folder / f"model{next(counter)}.lip"
    path.write_text(f"model net {{ {body} }}")
    derivation = check(str(path), options)
    assert derivation.ok, derivation.diagnostics
    return derivation


def build(derivation: Derivation, folder: Path, follow_weights: bool = False) -> Any:
    """Emit, write, import and instantiate: what a user does."""
    path = folder / f"emitted{next(counter)}.py"
    path.write_text(emit(derivation, follow_weights))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return module.Model().double()


def assert_layer_computes(layer: str, expected: Callable[[Tensor], Tensor], folder: Path, *shape: int) -> None:
    """The last layer is read off: a model that ends there need not be trained."""
    size = ", ".join(map(str, shape))
    body = f"input x: tensor[{size}], norm <= 100\n h = {layer}\n flatten\n dense(2) loss cross_entropy"
    model = build(derive(folder, body), folder)
    seen: list[Tensor] = []
    model.dense.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model(x)
    model(x[:0])
    torch.testing.assert_close(seen[0], expected(x).reshape(3, -1))
    assert seen[1].shape == (0, seen[0].shape[1])


# One network per family of ops, each ending in a vector of logits.
NETWORKS = {
    "activations": """input x: tensor[6], norm <= 2
        dense(8, bias=0.5) relu dense(8) leaky_relu(-2) dense(8) tanh dense(8) sigmoid dense(8) softplus
        dense(8) abs
        dense(8) groupsort(4) dense(8) fullsort dense(8) maxmin dense(3)""",
    "images": """input x: tensor[2, 8, 8], norm <= 2
        conv2d(4, kernel=3, padding="same", bias=0.5) max_pool(3, stride=2, padding=1)
        conv2d(4, kernel=(1, 3), stride=(1, 2), padding=(0, 1), groups=2) l2_pool(2)
        conv2d(4, kernel=1, dilation=2) avg_pool(1) scaled_avg_pool(2, stride=1, padding=1) pad(((1, 2), (1, 1)))
        space_to_depth(2) depth_to_space(2) bias(0.25) global_avg_pool(keep=true) global_avg_pool dense(3)""",
    "sequences": """input x: tensor[3, 10], norm <= 2
        conv1d(4, kernel=3, padding=1, padding_mode=circular) groupsort(2, axis=0) transpose dense(6, bias=1)
        groupsort(2) reshape(2, -1) transpose(1, 0) flatten dense(3)""",
    "volumes": """input x: tensor[1, 4, 4, 4], norm <= 2
        conv3d(2, kernel=2, stride=2) abs max_pool(2) flatten dense(3)""",
    "patches": "input x: tensor[1, 4, 4], norm <= 2\n patches(2) dense(4) groupsort(2) flatten dense(3)",
    "merges": """input x: tensor[8], norm <= 2
        a = dense(6); b = dense(x, 6) c = add(a, b) d = mean(a, c) residual(convex(0.25)) { dense(6) relu }
        branch { dense(4) } { dense(2) } -> concat e, f = split(2) concat(f, e) identity dropout(0.25) clip_norm(1)
        dense(3) clip_gradient(0.5)""",
    "broadcast": """input x: tensor[2, 3], norm <= 2
        a = dense(4) b = dense(x, 1) c = add(a, b) flatten d = dense(4) add(d, c) flatten dense(3)""",
    "frozen": """input x: tensor[8], norm <= 2
        frozen { dense(6, bias=1) relu } dense(4, constraint=frobenius(2)) dense(3)""",
    "names": """input forward: tensor[8], norm <= 2
        train = dense(6) self = dense(6) lambda_ = dense(6) F = dense(3)""",
}
LOSS_LINES = {
    "cross_entropy": "cross_entropy(temperature=4)",
    "bce": "bce(temperature=2, normalise=false)",
    "hinge": "hinge(margin=0.5)",
    "kr": "kr",
    "hkr": "hkr(alpha=2)",
    "multiclass_hinge": "multiclass_hinge(reduce=sum)",
    "multiclass_kr": "multiclass_kr",
    "multiclass_hkr": "multiclass_hkr(alpha=3, margin=0.5)",
    "squared_error": "squared_error(target_norm=2)",
    "cosine": "cosine(floor=0.5)",
}


def targets(loss: str, count: int) -> torch.Tensor:
    if loss in ("hinge", "kr", "hkr"):
        return torch.randint(0, 2, (count,)) * 2 - 1
    if loss == "bce":
        return torch.rand(count, dtype=torch.double)
    if loss == "squared_error":
        return torch.nn.functional.normalize(torch.randn(count, 3, dtype=torch.double)) * 2
    return torch.randint(0, 3, (count,))


def assert_within_bounds(model: Any, loss: str, examples: int = 8) -> None:
    """Gradients of single examples stay within K, and the cotangent of the logits within L."""
    bounds = model.gradient_bounds()
    inputs = torch.randn(examples, *model.input_shape, dtype=torch.double)
    for x, y in zip(inputs, targets(loss, examples), strict=True):
        model.zero_grad()
        model.gate.reset()
        model.criterion(model(x[None]), y[None]).backward()
        assert model.gate.largest <= model.loss_lipschitz * (1 + 1e-9)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad.norm() <= bounds[name] * (1 + 1e-9), name


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_every_family_runs_within_its_bounds(tmp_path: Path, name: str) -> None:
    derivation = derive(tmp_path, NETWORKS[name] + "\n loss cross_entropy")
    model = build(derivation, tmp_path)
    assert derivation.analysis is not None
    graph = derivation.analysis.graph
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == {
        n: p.shape for n, p in graph.parameters.items()
    }
    assert set(model.gradient_bounds()) == {n for n, p in model.named_parameters() if p.requires_grad}
    assert model(torch.randn(5, *model.input_shape, dtype=torch.double)).shape == (5, 3)
    model.criterion(
        model(torch.zeros(0, *model.input_shape, dtype=torch.double)), torch.zeros(0).long()
    ).backward()
    assert_within_bounds(model, "cross_entropy")


@pytest.mark.parametrize("loss", LOSS_LINES)
def test_every_loss_runs_within_its_constant(tmp_path: Path, loss: str) -> None:
    outputs = 1 if loss in ("bce", "hinge", "kr", "hkr") else 3
    model = build(
        derive(tmp_path, f"input x: tensor[4], norm <= 2\n dense({outputs}) loss {LOSS_LINES[loss]}"), tmp_path
    )
    assert_within_bounds(model, loss, examples=64)


def test_every_op_can_be_emitted() -> None:
    assert {op.name for op in OPS if not op.parameters} - set(HOLDERS) == set(EXPRESSIONS)
    assert {op.name for op in OPS if op.parameters} | set(HOLDERS) == set(LAYERS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_compile_and_start_inside_their_constraints(tmp_path: Path, path: Path) -> None:
    derivation = check(str(path), ModelOptions(bindings=OPEN.get(path.stem, {})))
    model = build(derivation, tmp_path)
    assert derivation.analysis is not None
    for name, norm in model.certified_norms().items():
        constraint = derivation.analysis.graph.parameters[name].constraint
        assert norm <= float(constraint.bound) * (1 + 1e-9), name  # type: ignore[arg-type]


def test_no_two_values_share_a_variable(tmp_path: Path) -> None:
    """A value renamed to keep clear of `forward` must not take the name of another one."""
    body = """input F: tensor[4], norm <= 1
        self = dense(4, constraint=spectral(0.001)) self_ = dense(F, 4, constraint=spectral(20))
        F_ = add(self, self_)
        torch = dense(3) torch_ = dense(F_, 3) train = add(torch, torch_) loss multiclass_kr"""
    derivation = derive(tmp_path, body)
    assert derivation.analysis is not None
    names = [node.name for node in derivation.analysis.graph.nodes]
    assert len(set(names)) == len(names)
    model = build(derivation, tmp_path)
    assert_within_bounds(model, "multiclass_kr", examples=64)
    x = torch.randn(8, 4, dtype=torch.double)
    clipped = model.clip_input(x)
    first = clipped @ (model.get_parameter("self_.weight") + model.get_parameter("self__2.weight")).T
    expected = first @ (model.get_parameter("torch_.weight") + model.get_parameter("torch__2.weight")).T
    torch.testing.assert_close(model(x), expected)


def test_bounds_that_follow_the_weights_fall_with_them(tmp_path: Path) -> None:
    derivation = derive(tmp_path, "input x: tensor[8], norm <= 2\n dense(6) relu dense(3) loss cross_entropy")
    fixed, model = build(derivation, tmp_path), build(derivation, tmp_path, follow_weights=True)
    start = model.gradient_bounds()
    assert start == pytest.approx(fixed.gradient_bounds(), rel=1e-5)
    with torch.no_grad():
        model.dense_2.weight *= 0.5
    halved = model.gradient_bounds()
    # The first layer sees half the slope and logits of half the norm; the second one only the latter.
    assert halved["dense.weight"] < 0.5 * start["dense.weight"]
    assert halved["dense_2.weight"] < start["dense_2.weight"]
    assert_within_bounds(model, "cross_entropy")


def test_following_bounds_agree_with_the_derivation_for_every_family(tmp_path: Path) -> None:
    for body in NETWORKS.values():
        derivation = derive(tmp_path, body + "\n loss cross_entropy(temperature=2)")
        model = build(derivation, tmp_path, follow_weights=True)
        claimed = build(derivation, tmp_path).gradient_bounds()
        for name, bound in model.gradient_bounds().items():
            assert bound <= claimed[name] * (1 + 1e-9), name


def test_the_certificate_is_that_of_the_derivation(tmp_path: Path) -> None:
    body = "input x: tensor[4], norm <= 0.1\n dense(3, bias=0.3) clip_gradient(0.5) dense(3) loss cross_entropy"
    derivation = derive(tmp_path, body)
    model = build(derivation, tmp_path)
    assert model.certificate == certificate(derivation)
    steps = model.certificate["steps"]
    claimed = {entry["name"]: float.fromhex(entry["gradient"]) for entry in steps["parameters"]}
    assert claimed == model.gradient_bounds()
    unclipped = {entry["name"]: float.fromhex(entry["unclipped"]) for entry in steps["parameters"]}
    assert unclipped == model.unclipped_bounds
    assert float.fromhex(steps["loss"]["lipschitz"]) == model.loss_lipschitz
    assert float.fromhex(model.certificate["totals"]["lipschitz"]) == model.lipschitz


def test_a_radius_is_never_rounded_up(tmp_path: Path) -> None:
    # 0.1 and 0.3 have nearest doubles above them: a ball of the nearest double would be larger than declared.
    model = build(
        derive(tmp_path, "input x: tensor[4], norm <= 0.1\n dense(3, bias=0.3) loss cross_entropy"), tmp_path
    )
    assert model.input_norm == 0.09999999999999999


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("input x: tensor[4], norm <= 1\n dense(3)", "a module needs a loss"),
        ("input x: tensor[4]\n dense(3) loss cross_entropy", "X_0 has no value"),
        (
            "param c: real; input x: tensor[4], norm <= c\n dense(3) dense(2) loss cosine(floor=1)",
            "c has no value",
        ),
    ],
)
def test_open_numbers_are_refused(tmp_path: Path, body: str, message: str) -> None:
    derivation = derive(tmp_path, body)
    with pytest.raises(InputError, match=message):
        emit(derivation)


def test_reserved_names_are_the_attributes_of_the_base_class() -> None:
    class Empty(LipschitzModule):
        def per_example_loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return output - target

    attributes = {*dir(Empty()), *LipschitzModule.__annotations__}
    assert {name for name in attributes if not name.startswith("_")} <= RESERVED


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("mnist_convnet", "MnistConvnet"),
        ("model", "ModelNetwork"),
        ("3d", "Model3d"),
        ("f", "FNetwork"),
        ("Spectral", "SpectralNetwork"),
    ],
)
def test_class_names(model: str, expected: str) -> None:
    assert class_name(model) == expected
