"""Every loss, from its line in a model to a training step of the emitted module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_torch.train.training import evaluate
from torch import Tensor

from lipcompile.__main__ import run
from lipcompile.core.graph import Graph
from lipcompile.diagnostics import InputError
from lipcompile.frontends.options import ModelOptions, parse_loss
from lipcompile.ops.table import LOSSES
from lipcompile.pipeline import check
from tests.attacks.catalogue import LOSS_ATTACKS
from tests.attacks.harness import ONE, LossCase
from tests.emitters.test_emit import build, derive

VECTOR = "input x: tensor[4], norm <= 2\n dense(3)"
LOGIT = "input x: tensor[4], norm <= 2\n dense(1)"
TOKENS = "input x: tensor[5, 4], norm <= 2\n dense(3)"
IMAGE = "input x: tensor[2, 5, 4], norm <= 2\n conv2d(3, kernel=1)"
SERIES = "input x: tensor[2, 5], norm <= 2\n conv1d(3, kernel=1)"
CASES = (
    (VECTOR, "cross_entropy(temperature=4)"),
    (VECTOR, "cross_entropy(label_smoothing=0.25, temperature=3, normalise=false)"),
    (VECTOR, "cross_entropy(class_weights=(1, 0.5, 2))"),
    (TOKENS, "token_cross_entropy"),
    (TOKENS, "token_cross_entropy(temperature=4, label_smoothing=0.1, reduce=sum)"),
    (TOKENS, "token_cross_entropy(class_weights=(1, 0.5, 2), ignore=-100)"),
    (TOKENS + " reshape(1, 5, 3)", "token_cross_entropy(ignore=0)"),
    (IMAGE + " reshape(3, -1) transpose", "token_cross_entropy"),
    (IMAGE + " transpose(1, 2, 0) relu", "token_cross_entropy"),
    (SERIES + " transpose", "token_cross_entropy"),
    (IMAGE, "pixel_cross_entropy"),
    (IMAGE, "pixel_cross_entropy(temperature=4, label_smoothing=0.1, reduce=sum)"),
    (SERIES, "pixel_cross_entropy(class_weights=(1, 0.5, 2), ignore=-100)"),
    (IMAGE + " global_avg_pool reshape(3, 1, 1)", "pixel_cross_entropy(ignore=0)"),
    (VECTOR, "nll"),
    (LOGIT, "bce(temperature=2, normalise=false)"),
    (VECTOR, "multilabel_bce(reduce=sum)"),
    (IMAGE, "multilabel_bce(temperature=2, normalise=false)"),
    (LOGIT, "hinge(margin=0.5)"),
    (LOGIT, "kr"),
    (LOGIT, "hkr(alpha=2)"),
    (VECTOR, "multiclass_hinge(reduce=sum)"),
    (VECTOR, "multiclass_kr"),
    (VECTOR, "multiclass_hkr(alpha=3, margin=0.5)"),
    (VECTOR, "multi_margin"),
    (VECTOR, "multi_margin(margin=2, p=2)"),
    (VECTOR, "cosine(floor=0.5)"),
    (VECTOR, "squared_error(target_norm=2)"),
    (VECTOR, "mean_squared_error(target_norm=2)"),
    (VECTOR, "absolute_error"),
    (TOKENS, "absolute_error"),
    (IMAGE, "mean_squared_error(target_norm=2)"),
    (VECTOR, "absolute_error(reduce=sum)"),
    (VECTOR, "huber(delta=0.5)"),
    (VECTOR, "huber(delta=4, target_norm=2, reduce=sum)"),
    (VECTOR, "smooth_l1(beta=0.5)"),
    (VECTOR, "smooth_l1(beta=4, target_norm=2, reduce=sum)"),
)
B = 16


def targets(graph: Graph) -> list[Any]:
    """Targets that the loss of the graph admits, one for each example."""
    assert graph.loss is not None
    generator = torch.Generator().manual_seed(0)
    case = LossCase(graph.loss.loss, graph.loss.attributes, graph.shape(graph.output), ONE)
    return [LOSS_ATTACKS[graph.loss.loss.name].target(case, generator) for _ in range(B)]


def stacked(drawn: list[Any]) -> Tensor:
    tensors = [torch.as_tensor(t, dtype=torch.float64 if isinstance(t, float) else None) for t in drawn]
    return torch.stack(tensors)


@pytest.mark.parametrize(("network", "line"), CASES)
def test_a_module_computes_its_loss_within_its_constant(tmp_path: Path, network: str, line: str) -> None:
    derivation = derive(tmp_path, f"{network} loss {line}")
    assert derivation.analysis is not None
    graph = derivation.analysis.graph
    assert graph.loss is not None
    model, drawn = build(derivation, tmp_path), targets(graph)
    x, y = torch.randn(B, *model.input_shape, dtype=torch.float64), stacked(drawn)
    output, oracle = model(x).detach(), LOSS_ATTACKS[graph.loss.loss.name].oracle
    expected = [oracle(graph.loss.attributes, z, t) for z, t in zip(output, drawn, strict=True)]
    torch.testing.assert_close(model.per_example_loss(output, y), torch.stack(expected).flatten())
    for i in range(B):
        model.zero_grad()
        model.gate.reset()
        model.criterion(model(x[i : i + 1]), y[i : i + 1]).backward()
        assert model.gate.largest <= model.loss_lipschitz * (1 + 1e-9)
        assert not model.gate.foreign
        for name, bound in model.gradient_bounds().items():
            assert model.get_parameter(name).grad.norm() <= bound * (1 + 1e-9)


@pytest.mark.parametrize(("network", "line"), CASES)
def test_an_empty_batch_has_no_loss_and_no_gradient(tmp_path: Path, network: str, line: str) -> None:
    derivation = derive(tmp_path, f"{network} loss {line}")
    assert derivation.analysis is not None
    model, y = build(derivation, tmp_path).float(), stacked(targets(derivation.analysis.graph))[:0]
    output = model(torch.zeros(0, *model.input_shape))
    assert model.per_example_loss(output, y).shape == (0,)
    model.criterion(output, y).backward()
    assert all(not p.grad.any() for p in model.parameters())


def test_every_loss_is_emitted() -> None:
    assert {"own", *(re.split(r"\W", line)[0] for _, line in CASES)} == {loss.name for loss in LOSSES}


def test_bounds_of_tokens_follow_the_weights(tmp_path: Path) -> None:
    body = f"{TOKENS} loss token_cross_entropy(temperature=2, class_weights=(1, 2, 1))"
    model = build(derive(tmp_path, body), tmp_path, follow_weights=True)
    before = model.gradient_bounds()
    assert all(bound <= model.bounds[name] * (1 + 1e-9) for name, bound in before.items())
    with torch.no_grad():
        model.dense.weight.mul_(0.25)
    assert all(model.gradient_bounds()[name] < bound for name, bound in before.items())


def test_tokens_train_to_a_budget(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.lip").write_text(f"model m {{ {TOKENS} loss token_cross_entropy(ignore=-1) }}")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5, 4)).astype(np.float32)
    y = x[..., :3].argmax(2)
    y[:, 4] = -1
    np.savez("data.npz", X=x, y=y)
    options = "--batch-size 16 --epochs 1 --epsilon 8 --delta 1e-3 --accountant rdp --output run"
    assert run(f"train m.lip --data data.npz {options}".split()) == 0
    assert "accuracy" in capsys.readouterr().out
    y[0, 0] = -7
    np.savez("data.npz", X=x, y=y)
    assert run(f"train m.lip --data data.npz {options}2".split()) == 2
    assert "error[LIP403]: a class index is outside 0 … 2" in capsys.readouterr().err


@pytest.mark.parametrize("bounds", ["theorem", "clip"])
def test_pixels_train_to_a_budget(tmp_path: Path, monkeypatch: Any, capsys: Any, bounds: str) -> None:
    """As many classes as rows and columns: which axis is which cannot be told by sizes."""
    monkeypatch.chdir(tmp_path)
    body = "input x: tensor[2, 3, 3], norm <= 4; conv2d(3, kernel=1); loss pixel_cross_entropy(ignore=-1)"
    Path("m.lip").write_text(f"model m {{ {body} }}")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2, 3, 3)).astype(np.float32)
    y = (x[:, 0] > 0) + 0
    y[:, 0, 0] = -1
    np.savez("data.npz", X=x, y=y)
    options = (
        f"--batch-size 16 --epochs 3 --epsilon 100 --delta 1e-3 --accountant rdp --bounds {bounds} --output run"
    )
    assert run(f"train m.lip --data data.npz {options}".split()) == 0
    capsys.readouterr()
    y[0, 0, 0] = 3
    np.savez("data.npz", X=x, y=y)
    assert run(f"train m.lip --data data.npz {options}2".split()) == 2
    assert "error[LIP403]: a class index is outside 0 … 2" in capsys.readouterr().err
    np.savez("data.npz", X=x, y=y[:, 0])
    assert run(f"train m.lip --data data.npz {options}3".split()) == 2
    assert "give one class index a token" in capsys.readouterr().err


def test_the_accuracy_of_pixels_is_along_the_channels(tmp_path: Path) -> None:
    body = "input x: tensor[2, 3, 3], norm <= 4; conv2d(3, kernel=1); loss pixel_cross_entropy"
    model = build(derive(tmp_path, body), tmp_path).float()
    x = torch.randn(50, 2, 3, 3)
    assert evaluate(model, x, model(x).argmax(1)) == 1
    assert evaluate(model, x, model(x).argmin(1)) == 0


def test_masks_train_to_a_budget(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.lip").write_text(
        "model m { input x: tensor[2, 3, 3], norm <= 4; conv2d(1, kernel=1); loss multilabel_bce }"
    )
    x = np.random.default_rng(0).normal(size=(60, 2, 3, 3)).astype(np.float32)
    options = "--batch-size 16 --epochs 1 --epsilon 100 --delta 1e-3 --accountant rdp --output run"
    np.savez("data.npz", X=x, y=(x[:, :1] > 0) + 0)
    assert run(f"train m.lip --data data.npz {options}".split()) == 0
    assert "accuracy" in capsys.readouterr().out
    np.savez("data.npz", X=x, y=(x[:, :1] > 0) + 1)
    assert run(f"train m.lip --data data.npz {options}2".split()) == 2
    assert "error[LIP403]: targets must lie in [0, 1]" in capsys.readouterr().err


def test_the_accuracy_of_masks_is_that_of_signs(tmp_path: Path) -> None:
    model = build(derive(tmp_path, f"{IMAGE} loss multilabel_bce"), tmp_path).float()
    x = torch.randn(50, *model.input_shape)
    assert evaluate(model, x, (model(x) > 0).long()) == 1
    assert evaluate(model, x, (model(x) < 0).long()) == 0


# What is refused, and the fixes


def errors(tmp_path: Path, body: str, loss: str | None = None) -> str:
    path = tmp_path / "m.lip"
    path.write_text(f"model m {{ {body} }}")
    found = check(str(path), ModelOptions(loss=loss)).diagnostics
    return "\n".join(f"{d.code} {d.message}; {d.help}" for d in found)


REFUSED = (
    (VECTOR, "mse", "LIP210 unknown loss `mse`; use mean_squared_error; bounds by theorem"),
    (VECTOR, "l1_loss", "LIP210 unknown loss `l1_loss`; use absolute_error"),
    (VECTOR, "ce", "LIP210 unknown loss `ce`; use cross_entropy"),
    (VECTOR, "bce_with_logits", "LIP210 unknown loss `bce_with_logits`; use bce"),
    (VECTOR, "CrossEntropyLoss", "LIP210 unknown loss `CrossEntropyLoss`; use cross_entropy"),
    (VECTOR, "TripletMarginLoss", "per-example gradients are undefined"),
    (VECTOR, "kl_div", "other soft targets have other Lipschitz constants"),
    (
        VECTOR,
        "cross_entropy(reduction=mean)",
        "LIP012 `cross_entropy`: has no argument `reduction`; the loss is computed for each example",
    ),
    (TOKENS, "token_cross_entropy(ignore_index=0)", "counts 0 and stays in the mean"),
    (TOKENS, "token_cross_entropy(ignore=0.5)", "`ignore` must be an integer"),
    (TOKENS, "token_cross_entropy(reduce=none)", "`reduce` must be one of mean, sum"),
    (VECTOR, "cross_entropy(weight=(1, 2, 3))", "write class_weights=(…)"),
    (VECTOR, "cross_entropy(class_weights=(1, 2))", "LIP212 `class_weights` has 2 weights for 3 classes"),
    (VECTOR, "cross_entropy(class_weights=(1, 2, -1))", "LIP212 `class_weights` must not be negative"),
    (VECTOR, "cross_entropy(class_weights=(0, 0, 0))", "nor all zero"),
    (VECTOR, "cross_entropy(class_weights=mean)", "LIP012 `cross_entropy`: `class_weights` must be a number"),
    (VECTOR, "cross_entropy(class_weights=(1, 1, 1), label_smoothing=0.1)", "exclude one another"),
    (VECTOR, "cross_entropy(label_smoothing=1)", "LIP212 `label_smoothing` must be at least 0 and below 1"),
    (VECTOR, "cross_entropy(label_smoothing=-0.1)", "LIP212 `label_smoothing` must be at least 0 and below 1"),
    (TOKENS, "cross_entropy", "or use token_cross_entropy"),
    (VECTOR, "token_cross_entropy", "LIP211 this loss needs logits [tokens, classes]"),
    (
        IMAGE,
        "token_cross_entropy",
        "last axis of [3, 5, 4], but `conv` has channels first; use pixel_cross_entropy",
    ),
    (IMAGE, "cross_entropy", "or use pixel_cross_entropy if every pixel has a label"),
    (VECTOR, "pixel_cross_entropy", "LIP211 this loss needs logits [classes, height, width]"),
    (IMAGE, "pixel_cross_entropy(class_weights=(1, 2))", "LIP212 `class_weights` has 2 weights for 3 classes"),
    (IMAGE + " avg_pool(2) relu", "token_cross_entropy", "[3, 2, 2], but `avg_pool` has channels first"),
    (SERIES, "token_cross_entropy", "[3, 5], but `conv` has channels first; use pixel_cross_entropy"),
    (VECTOR, "bce", "end with dense(1), or use multilabel_bce if every output has a label"),
    (VECTOR, "MultiLabelSoftMarginLoss", "or multilabel_bce on several"),
    (VECTOR, "huber(delta=0)", "LIP212 `delta` must be positive"),
    (VECTOR, "smooth_l1(beta=0)", "LIP212 `beta` must be positive"),
    (VECTOR, "huber(target_norm=0)", "LIP212 `target_norm` must be positive"),
    (VECTOR, "mean_squared_error", "LIP212 mean_squared_error has no Lipschitz constant without a bound of the"),
    (VECTOR, "multi_margin(p=3)", "`p` must be one of 1, 2"),
)


@pytest.mark.parametrize(("network", "line", "message"), REFUSED)
def test_what_has_another_constant_is_refused_with_a_fix(
    tmp_path: Path, network: str, line: str, message: str
) -> None:
    assert message in errors(tmp_path, f"{network} loss {line}")


def test_the_command_line_takes_tuples_and_negative_labels(tmp_path: Path) -> None:
    assert parse_loss("cross_entropy:class_weights=(1, 2,0.5),temperature=4").attributes.class_weights[2] == 0.5
    assert parse_loss("token_cross_entropy:reduce=sum,ignore=-100").attributes.ignore == -100
    assert "2 weights for 3 classes" in errors(tmp_path, VECTOR, "cross_entropy:class_weights=(1,2)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cross_entropy:class_weights=1 2", "`1 2` is not a number"),
        ("cross_entropy:class_weights=(1,2", "`(1` is not a number"),
        ("cross_entropy:class_weights=(1,(2))", "is not a number"),
        ("token_cross_entropy:ignore=--1", "is negative"),
        ("token_cross_entropy:ignore=-x", "`x` is not a number"),
        ("cross_entropy:reduction=none", "has no argument `reduction`"),
        ("mse", "unknown loss `mse`"),
    ],
)
def test_the_command_line_refuses_what_it_cannot_read(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_loss(text)
    assert message in caught.value.diagnostics[0].message
