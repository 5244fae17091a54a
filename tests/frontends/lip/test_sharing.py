"""Weights used several times (`share=`): one parameter, bounds summed over its uses, nothing counted twice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import lipcompile
from lipcompile.core.backend import instantiate
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.options import ModelOptions
from tests.emitters.test_emit import assert_within_bounds, build, derive
from tests.frontends.lip.test_dsl import problems

# Twins on the halves of x, merged; K of the twin is the sum over both uses, as parts of one cotangent if joined.
SIAMESE = """input x: tensor[8], norm <= 2
    a, b = split(x, 2)
    left = dense(a, 4, share="twin") right = dense(b, 4, share="twin")
    {merge}(left, right) {last} loss kr"""
TIED = 'input x: tensor[4], norm <= 2\n dense(4, share="w") {between} dense(4, share="w") dense(1) loss kr'
THREE = """input x: tensor[4], norm <= 1
    repeat 3 { dense(4, share="w", bias=0.5) groupsort(2) } dense(1) loss kr"""

TRANSPOSED = """input x: tensor[4], norm <= 2
    dense(2, share="w") relu dense_transpose(4, share="w") dense(1) loss kr"""
POSITIONS = """input x: tensor[3, 4], norm <= 2
    dense(4, share="w") reduce_mean(axes=(0,)) dense(4, share="w") dense(1) loss kr"""
TABLE = """input x: tokens[3]
    embedding(5, 2, share="w") tanh dense(5, share="w") loss token_cross_entropy"""

BODIES = {
    "siamese, added": SIAMESE.format(merge="add", last="dense(1)"),
    "siamese, concatenated": SIAMESE.format(merge="concat", last="dense(1)"),
    "siamese, largest": SIAMESE.format(merge="maximum", last="dense(1)"),
    "siamese, product": SIAMESE.replace("{merge}(left", "l = tanh(left) r = tanh(right) {merge}(l")
    .replace(", right)", ", r)")
    .format(merge="multiply", last="dense(1)"),
    "tied": TIED.format(between="relu"),
    "three times": THREE,
    "transposed": TRANSPOSED,
    "at more positions": POSITIONS,
    "convolution": """input x: tensor[2, 6, 6], norm <= 2
        repeat 2 { conv2d(2, kernel=3, padding=1, share="k", bias=0.5) groupsort(2) } flatten dense(1) loss kr""",
}
# One logit, so L = 1, and constraints of norm 1: uses of the twin have κ = ‖half of x‖ <= 2 and cotangents <= 1.
EXPECTED = {
    "siamese, added": {"left.weight": 4, "dense.weight": 2 * math.sqrt(2)},
    "siamese, concatenated": {"left.weight": 2 * math.sqrt(2), "dense.weight": 2},
    "siamese, largest": {"left.weight": 2 * math.sqrt(2), "dense.weight": 2},
    "tied": {"dense.weight": 4, "dense_3.weight": 2},
    # κ is 2 for both uses, and the cotangents have norm 1.
    "transposed": {"dense.weight": 4, "dense_2.weight": 2},
    # The mean of 3 rows divides norms, and on the way back cotangents, by √3.
    "at more positions": {"dense.weight": 4 / math.sqrt(3), "dense_3.weight": 2 / math.sqrt(3)},
    # Norms grow by the bias: 1, 1.5, 2 before the three uses.
    "three times": {"dense.weight": 4.5, "dense.bias": 3, "dense_4.weight": 2.5},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_bound_of_a_shared_weight_is_summed_over_its_uses(tmp_path: Path, name: str) -> None:
    derivation = derive(tmp_path, BODIES[name])
    assert derivation.analysis is not None
    found = {parameter: bound.value for parameter, bound in derivation.analysis.parameters.items()}
    assert found == pytest.approx(EXPECTED[name], rel=1e-12)


@pytest.mark.parametrize("name", BODIES)
def test_a_shared_weight_is_one_parameter_whose_gradients_stay_within_its_bound(tmp_path: Path, name: str) -> None:
    model = build(derive(tmp_path, BODIES[name]), tmp_path)
    names = [parameter for parameter, _ in model.named_parameters()]
    assert set(names) == set(model.gradient_bounds())
    assert len([parameter for parameter in names if parameter.endswith("weight")]) == 2
    for scale in (1.0, 10.0):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(scale * torch.randn_like(parameter))
        model.project_()
        assert_within_bounds(model, "kr", examples=16)


def test_the_sum_over_uses_is_attained(tmp_path: Path) -> None:
    """Twins with the identity on equal halves of x, added: the gradient is the sum, 2√2 of the bound 4.

    Each half has norm √2, while the bound allows each of them the norm of x.
    """
    model = build(derive(tmp_path, BODIES["siamese, added"]), tmp_path)
    with torch.no_grad():
        model.left.weight.copy_(torch.eye(4))
        model.dense.weight.copy_(torch.tensor([[1.0, 0, 0, 0]]))
    x = torch.zeros(1, 8, dtype=torch.double)
    x[0, 0] = x[0, 4] = math.sqrt(2)
    model.criterion(model(x), torch.tensor([1])).backward()
    assert float(model.left.weight.grad.norm()) == pytest.approx(2 * math.sqrt(2), rel=1e-9)


def test_a_weight_and_its_transpose_attain_the_bound(tmp_path: Path) -> None:
    """W = e₁e₁ᵀ, x = 2e₁ and the last weight e₁ᵀ: both uses have the gradient 2e₁e₁ᵀ."""
    model = build(derive(tmp_path, TRANSPOSED), tmp_path)
    with torch.no_grad():
        model.dense.weight.copy_(torch.eye(2, 4) * torch.tensor([1.0, 0, 0, 0]))
        model.dense_2.weight.copy_(torch.tensor([[1.0, 0, 0, 0]]))
    x = torch.tensor([[2.0, 0, 0, 0]], dtype=torch.double)
    model.criterion(model(x), torch.tensor([1])).backward()
    assert float(model.dense.weight.grad.norm()) == pytest.approx(4, rel=1e-9)


def test_a_head_shares_the_table_of_an_embedding_under_clips_only(tmp_path: Path) -> None:
    """Rows of norm 1 say nothing of the norm of the matrix."""
    path = tmp_path / "table.lip"
    path.write_text(f"model m {{ {TABLE} }}")
    (found,) = lipcompile.check(str(path)).diagnostics
    assert found.code == "LIP308"
    assert "--bounds clip" in found.help
    for options in (ModelOptions(bounds="clip"), ModelOptions(bounds="auto")):
        analysis = lipcompile.check(str(path), options).analysis
        assert analysis is not None
        assert [*analysis.graph.parameters] == ["embedding.table"]
        assert [group.parameters for group in analysis.graph.clips] == [("embedding.table",)]


def test_the_longest_row_of_a_table_is_not_its_norm(tmp_path: Path) -> None:
    """Five rows 0.3·e₁ have the norm 0.3·√5 as a matrix. Three words and this head make gradients of 0.28."""
    body = """input x: tokens[3]
        embedding(5, 2, share="w", clip=automatic) dense(5, share="w", clip=automatic) tanh flatten dense(3)
        loss cross_entropy"""
    module = instantiate(tmp_path / "net.py", emit(derive(tmp_path, body), follow_weights=True))
    with torch.no_grad():
        module.embedding.table.copy_(torch.tensor([0.3, 0.0]))
        module.dense_2.weight.zero_()
    module.criterion(module(torch.zeros(1, 3, dtype=torch.long)), torch.tensor([0])).backward()
    made = math.sqrt(2 / 3) * math.sqrt(15) * math.tanh(0.09)
    assert float(module.dense_2.weight.grad.norm()) == pytest.approx(made, rel=1e-5)
    assert made <= module.gradient_bounds()["dense_2.weight"]


def test_a_module_uses_the_same_tensor_everywhere(tmp_path: Path) -> None:
    model = build(derive(tmp_path, TIED.format(between="")), tmp_path)
    with torch.no_grad():
        model.dense.weight.mul_(0.5)
    x = torch.randn(3, 4, dtype=torch.double)
    weight, last = model.dense.weight, model.get_parameter("dense_3.weight")
    torch.testing.assert_close(model(x), model.clip_input(x) @ weight.T @ weight.T @ last.T)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ('dense(4, share="w") dense(4, share="w", bias=1)', "LIP012", "share `w` must be of one kind"),
        ('dense(4, share="w") dense(4, share="w", constraint=orthogonal)', "LIP012", "the same constraints"),
        ('dense(4, share="w") bias(1, share="w")', "LIP012", "share `w` must be of one kind"),
        ('frozen { dense(4, share="w") } dense(4, share="w")', "LIP012", "share `w` must be of one kind"),
        ('dense(4, share="w") dense_transpose(4, share="w", bias=1)', "LIP012", "share `w` must be of one kind"),
        ('dense(2, share="w") dense_transpose(4, share="w", constraint=frobenius(1))', "LIP012", "same constr"),
        ('dense(2, share="w") dense_transpose(3, share="w")', "LIP308", "has shape [2, 4]"),
        ('dense(2, share="w") relu dense(2, share="w")', "LIP308", "has shape [2, 4]"),
        ('scale(share="w") dense(4, share="w")', "LIP012", "share `w` must be of one kind"),
        ("dense(4, share=3)", "LIP012", "takes a label"),
        ('relu(share="w")', "LIP012", "no argument `share`"),
    ],
)
def test_what_cannot_be_shared_is_refused(tmp_path: Path, body: str, code: str, message: str) -> None:
    (found,) = problems(tmp_path, f"model m {{ input x: tensor[4], norm <= 1\n {body} }}")
    assert found.code == code
    assert message in found.message
