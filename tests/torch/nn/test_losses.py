"""Losses: values by their formulas, Lipschitz constants by ascent, targets refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from lipcompile_torch.nn import losses
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Loss = Callable[[Tensor, Tensor], Tensor]
K = 5
INDEX, SIGN = "index", "sign"

LOSSES: dict[str, tuple[Loss, str, float]] = {
    "cross_entropy": (losses.cross_entropy, INDEX, math.sqrt(2)),
    "cross_entropy τ": (lambda o, t: losses.cross_entropy(o, t, 7.0), INDEX, math.sqrt(2)),
    "cross_entropy raw": (lambda o, t: losses.cross_entropy(o, t, 7.0, normalise=False), INDEX, 7 * math.sqrt(2)),
    "bce": (lambda o, t: losses.binary_cross_entropy(o, (t + 1) / 2), SIGN, 1.0),
    "bce raw": (lambda o, t: losses.binary_cross_entropy(o, (t + 1) / 2, 3.0, normalise=False), SIGN, 3.0),
    "hinge": (losses.hinge, SIGN, 1.0),
    "kr": (losses.kr, SIGN, 1.0),
    "hkr": (lambda o, t: losses.hkr(o, t, 4.0), SIGN, 5.0),
    "multiclass_hinge": (losses.multiclass_hinge, INDEX, 1 / math.sqrt(K)),
    "multiclass_kr": (losses.multiclass_kr, INDEX, 1 / math.sqrt(K)),
    "multiclass_hkr": (lambda o, t: losses.multiclass_hkr(o, t, 4.0), INDEX, 5 / math.sqrt(K)),
    "multiclass_hkr sum": (lambda o, t: losses.multiclass_hkr(o, t, 4.0, reduce="sum"), INDEX, 5 * math.sqrt(K)),
    "cosine": (lambda o, t: losses.cosine(o, t, 0.25), INDEX, 4.0),
    "nll": (losses.nll, INDEX, 1.0),
    # ‖e_j - q‖ with q = (0.76, 0.06, …): √(0.76² + 0.94² + 3·0.06²)
    "cross_entropy smooth": (lambda o, t: losses.cross_entropy(o, t, label_smoothing=0.3), INDEX, 1.2132601),
    "cross_entropy weighted": (
        lambda o, t: losses.cross_entropy(o, t, 7.0, class_weights=(1, 0, 2, 3, 1)),
        INDEX,
        3 * math.sqrt(2),
    ),
    "multi_margin": (losses.multi_margin, INDEX, math.sqrt(4 / 5)),
    "tokens sum": (lambda o, t: losses.token_cross_entropy(*of_tokens(o, t), reduce="sum"), INDEX, math.sqrt(2)),
    "tokens mean": (lambda o, t: losses.token_cross_entropy(*of_tokens(o, t)), INDEX, math.sqrt(2)),
    "absolute_error": (lambda o, t: losses.absolute_error(o, real(t)), INDEX, 1 / math.sqrt(K)),
    "huber": (lambda o, t: losses.huber(o, real(t), 0.25, reduce="sum"), INDEX, 0.25 * math.sqrt(K)),
    "smooth_l1": (lambda o, t: losses.smooth_l1(o, real(t), 0.25, reduce="sum"), INDEX, math.sqrt(K)),
}


def of_tokens(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Examples of one token."""
    return output[:, None], target[:, None]


def real(target: Tensor) -> Tensor:
    """Real targets [B, K] far from the outputs."""
    return (100.0 * target[:, None] + 50).expand(-1, K)


def batch(kind: str, count: int, scale: float) -> tuple[Tensor, Tensor]:
    if kind == INDEX:
        return scale * torch.randn(count, K, dtype=torch.float64), torch.randint(0, K, (count,))
    return scale * torch.randn(count, 1, dtype=torch.float64), 2 * torch.randint(0, 2, (count,)) - 1


@pytest.mark.parametrize("name", LOSSES)
def test_lipschitz_constants_hold_and_are_nearly_attained(name: str) -> None:
    torch.manual_seed(0)
    loss, kind, constant = LOSSES[name]
    largest = 0.0
    for scale in (0.01, 0.2, 1.0, 10.0):
        output, target = batch(kind, 4000, scale)
        output.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(output, target).sum(), output)
        largest = max(largest, float(gradient.norm(dim=1).max()))
    assert 0.9 * constant <= largest <= constant * (1 + 1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_one_number_an_example_and_empty_batches(name: str) -> None:
    loss, kind, _ = LOSSES[name]
    for count in (0, 1, 3):
        output, target = batch(kind, count, 1.0)
        output.requires_grad_()
        values = loss(output, target)
        assert values.shape == (count,)
        torch.autograd.backward(values.sum())
        if kind == SIGN:
            assert torch.equal(loss(output.squeeze(1), target), values)
            assert torch.equal(loss(output, target[:, None]), values)


def test_values() -> None:
    output, target = torch.tensor([[2.0, -1.0, 0.5]]), torch.tensor([2])
    signs = torch.tensor([[-1.0, -1.0, 1.0]])
    agreement = (signs * output)[0]
    soft = torch.log_softmax(3 * output, 1)[0, 2]
    assert losses.cross_entropy(output, target, 3.0).item() == pytest.approx(-soft.item() / 3)
    assert losses.cross_entropy(output, target, 3.0, normalise=False).item() == pytest.approx(-soft.item())
    assert losses.multiclass_kr(output, target).item() == pytest.approx(-agreement.mean().item())
    assert losses.multiclass_kr(output, target, "sum").item() == pytest.approx(-agreement.sum().item())
    hinge = (1.5 - agreement).clamp_min(0)
    assert losses.multiclass_hinge(output, target, 1.5).item() == pytest.approx(hinge.mean().item())
    total = (-agreement + 2 * hinge).mean().item()
    assert losses.multiclass_hkr(output, target, 2.0, 1.5).item() == pytest.approx(total)
    logit, one = torch.tensor([0.25]), torch.tensor([-1])
    assert losses.hkr(logit, one, 2.0, 1.0).item() == pytest.approx(0.25 + 2 * 1.25)
    assert losses.hinge(logit, one, 0.5).item() == pytest.approx(0.75)
    assert losses.kr(logit, one).item() == pytest.approx(0.25)
    assert losses.binary_cross_entropy(logit, torch.tensor([1.0]), 2.0).item() == pytest.approx(
        math.log1p(math.exp(-0.5)) / 2
    )
    assert losses.squared_error(output, torch.zeros(1, 3), 1.0).item() == pytest.approx(2.625)
    assert losses.cosine(output, target, 0.1).item() == pytest.approx(-0.5 / math.sqrt(5.25))
    assert losses.cosine(output, target, 10.0).item() == pytest.approx(-0.05)


def test_squared_error_gradient_is_bounded_by_both_norms() -> None:
    torch.manual_seed(0)
    output = torch.nn.functional.normalize(torch.randn(100, 4)).requires_grad_()
    target = -2 * output.detach()
    torch.autograd.backward(losses.squared_error(output, target, 2.0).sum())
    assert output.grad is not None
    assert float(output.grad.norm(dim=1).max()) == pytest.approx(3.0)


def test_values_of_tokens() -> None:
    """Against torch's own losses, token by token."""
    torch.manual_seed(0)
    output, target = torch.randn(4, 2, 3, K), torch.randint(0, K, (4, 2, 3))
    target[0] = -100
    target[1, 0] = -100
    found = losses.token_cross_entropy(output, target, 2.0, label_smoothing=0.2, ignore=-100)
    each = F.cross_entropy(2 * output.movedim(-1, 1), target, reduction="none", label_smoothing=0.2) / 2
    torch.testing.assert_close(found, each.flatten(1).sum(1) / 6)
    assert found[0] == 0
    weights = (0.5, 1.0, 2.0, 0.0, 3.0)
    found = losses.token_cross_entropy(output, target, class_weights=weights, reduce="sum", ignore=-100)
    each = F.cross_entropy(output.movedim(-1, 1), target, weight=torch.tensor(weights), reduction="none")
    torch.testing.assert_close(found, each.flatten(1).sum(1))


def test_values_of_pixels_are_those_of_torch() -> None:
    """torch has the classes on axis 1, too. Its mean leaves ignored pixels out, ours counts them as 0."""
    torch.manual_seed(0)
    output, target = torch.randn(4, K, 2, 3), torch.randint(0, K, (4, 2, 3))
    found = losses.pixel_cross_entropy(output, target, label_smoothing=0.2)
    torch.testing.assert_close(found.mean(), F.cross_entropy(output, target, label_smoothing=0.2))
    target[1, 0] = -100
    found = losses.pixel_cross_entropy(output, target, reduce="sum", ignore=-100)
    torch.testing.assert_close(found.sum(), F.cross_entropy(output, target, reduction="sum"))


def test_values_of_several_labels_are_those_of_torch() -> None:
    torch.manual_seed(0)
    output, target = torch.randn(4, 2, 3), torch.rand(4, 2, 3)
    found = losses.multilabel_bce(output, target, reduce="sum")
    torch.testing.assert_close(found.sum(), F.binary_cross_entropy_with_logits(output, target, reduction="sum"))
    found = losses.multilabel_bce(output, target, 3.0)
    each = F.binary_cross_entropy_with_logits(3 * output, target, reduction="none") / 3
    torch.testing.assert_close(found, each.flatten(1).mean(1))


def test_a_label_of_a_class_may_be_ignored() -> None:
    output, target = torch.randn(2, 3, K), torch.tensor([[0, 1, 0], [2, 3, 4]])
    every = losses.token_cross_entropy(output, target, reduce="sum")
    some = losses.token_cross_entropy(output, target, reduce="sum", ignore=0)
    lost = F.cross_entropy(output[0, [0, 2]], torch.zeros(2, dtype=torch.long), reduction="sum")
    torch.testing.assert_close(every - some, torch.stack((lost, torch.tensor(0.0))))


def test_values_of_multi_margins_are_those_of_torch() -> None:
    torch.manual_seed(0)
    output, target = torch.randn(30, K), torch.randint(0, K, (30,))
    for p in (1, 2):
        expected = F.multi_margin_loss(output, target, p=p, margin=0.5, reduction="none")
        torch.testing.assert_close(losses.multi_margin(output, target, 0.5, p), expected)


def test_values_of_regression_are_those_of_torch() -> None:
    torch.manual_seed(0)
    output, target = torch.randn(30, K), torch.randn(30, K)
    pairs = (
        (losses.mean_squared_error(output, target, 10), F.mse_loss(output, target, reduction="none").mean(1)),
        (losses.absolute_error(output, target, "sum"), F.l1_loss(output, target, reduction="none").sum(1)),
        (losses.absolute_error(output, target), F.l1_loss(output, target, reduction="none").mean(1)),
        (losses.huber(output, target, 0.7, 10), F.huber_loss(output, target, reduction="none", delta=0.7).mean(1)),
        (
            losses.smooth_l1(output, target, 0.7),
            F.smooth_l1_loss(output, target, reduction="none", beta=0.7).mean(1),
        ),
    )
    for found, expected in pairs:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_finite_where_losses_have_corners(name: str, dtype: torch.dtype) -> None:
    """At 0, where sizes have corners, and far out, where exponentials overflow."""
    loss, kind, constant = LOSSES[name]
    target = batch(kind, 2, 1.0)[1]
    for scale in (0.0, 1e4):
        output = torch.full((2, K if kind == INDEX else 1), scale, dtype=dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(output, target).sum(), output)
        assert gradient.dtype == dtype
        assert float(gradient.double().norm(dim=1).max()) <= constant * 1.05


@pytest.mark.parametrize("loss", [losses.absolute_error, losses.huber, losses.smooth_l1])
def test_the_corner_of_a_residual_has_gradient_zero(loss: Loss) -> None:
    output = torch.ones(2, K, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(output, torch.ones(2, K)).sum(), output)
    assert not gradient.any()


LOGITS, ONE = torch.zeros(2, 3), torch.zeros(2, 1)
TABLE, NOBODY = torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64)
REFUSED: list[tuple[str, Callable[[], Tensor]]] = [
    ("class indices, not torch.float32", lambda: losses.cross_entropy(LOGITS, torch.full((2, 3), 1 / 3))),
    ("class indices, not torch.float32", lambda: losses.cross_entropy(LOGITS, torch.ones(2))),
    ("class indices, not torch.bool", lambda: losses.cross_entropy(LOGITS, torch.ones(2, dtype=torch.bool))),
    ("outside 0 … 2", lambda: losses.cross_entropy(LOGITS, torch.tensor([0, 3]))),
    ("outside 0 … 2", lambda: losses.cross_entropy(LOGITS, torch.tensor([0, -100]))),
    ("outside 0 … 2", lambda: losses.multiclass_kr(LOGITS, torch.tensor([0, -1]))),
    ("one class index an example", lambda: losses.cosine(LOGITS, torch.tensor([[0, 1]]), 1.0)),
    (r"shape \[B, K\]", lambda: losses.multiclass_hinge(torch.zeros(2), torch.tensor([0, 1]))),
    (r"\[0, 1\]", lambda: losses.binary_cross_entropy(ONE, torch.tensor([0.0, 2.0]))),
    (r"\[0, 1\]", lambda: losses.binary_cross_entropy(ONE, torch.tensor([0.0, math.nan]))),
    ("one logit", lambda: losses.binary_cross_entropy(LOGITS, torch.tensor([0.0, 1.0]))),
    ("one number for each example", lambda: losses.hinge(ONE, torch.ones(2, 2))),
    ("-1 or 1", lambda: losses.hinge(ONE, torch.tensor([0, 1]))),
    ("-1 or 1", lambda: losses.kr(ONE, torch.tensor([2.0, -1.0]))),
    ("-1 or 1", lambda: losses.hkr(ONE, torch.tensor([0.5, -1.0]), 1.0)),
    ("exceeds target_norm", lambda: losses.squared_error(LOGITS, torch.ones(2, 3), 1.0)),
    ("exceeds target_norm", lambda: losses.squared_error(LOGITS, torch.full((2, 3), math.nan), 1.0)),
    ("must be floats of shape", lambda: losses.squared_error(LOGITS, torch.ones(2), 1.0)),
    ("must be floats of shape", lambda: losses.squared_error(LOGITS, torch.ones(2, 3, dtype=torch.int64), 9.0)),
    ("class indices, not torch.float32", lambda: losses.token_cross_entropy(TABLE, NOBODY.float())),
    ("one class index a token", lambda: losses.token_cross_entropy(TABLE, torch.tensor([0, 1]))),
    ("one class index a token", lambda: losses.token_cross_entropy(TABLE, NOBODY[:, :3])),
    ("name the label to `ignore`", lambda: losses.token_cross_entropy(TABLE, NOBODY - 100)),
    ("name the label to `ignore`", lambda: losses.token_cross_entropy(TABLE, NOBODY + 3, ignore=-100)),
    ("one number a logit", lambda: losses.multilabel_bce(LOGITS, torch.tensor([0.0, 1.0]))),
    (r"lie in \[0, 1\]", lambda: losses.multilabel_bce(LOGITS, 2 + torch.zeros_like(LOGITS))),
    ("one class index a token", lambda: losses.pixel_cross_entropy(TABLE, NOBODY)),
    (r"shape \[B, K, H, W\]", lambda: losses.pixel_cross_entropy(LOGITS, torch.tensor([0, 1]))),
    (r"shape \[B, n, K\]", lambda: losses.token_cross_entropy(LOGITS, torch.tensor([0, 1]))),
    ("3 finite non-negative numbers", lambda: losses.cross_entropy(LOGITS, NOBODY[:, 0], class_weights=(1, 2))),
    (
        "3 finite non-negative numbers",
        lambda: losses.cross_entropy(LOGITS, NOBODY[:, 0], class_weights=(1, 2, -1)),
    ),
    (
        "3 finite non-negative numbers",
        lambda: losses.cross_entropy(LOGITS, NOBODY[:, 0], class_weights=(1, 2, math.nan)),
    ),
    (
        "3 finite non-negative numbers",
        lambda: losses.cross_entropy(LOGITS, NOBODY[:, 0], class_weights=(1, 2, math.inf)),
    ),
    ("with class weights", lambda: losses.cross_entropy(LOGITS, NOBODY[:, 0], 1.0, True, 0.1, (1, 1, 1))),
    ("label smoothing must be in", lambda: losses.cross_entropy(LOGITS, NOBODY[:, 0], label_smoothing=1.0)),
    ("outside 0 … 2", lambda: losses.nll(LOGITS, torch.tensor([0, 3]))),
    ("must be 1 or 2; got 3", lambda: losses.multi_margin(LOGITS, torch.tensor([0, 1]), 1.0, 3)),
    ("NaN or infinite", lambda: losses.absolute_error(LOGITS, torch.full((2, 3), math.nan))),
    ("NaN or infinite", lambda: losses.huber(LOGITS, torch.full((2, 3), math.inf))),
    ("exceeds target_norm", lambda: losses.smooth_l1(LOGITS, torch.ones(2, 3), 1.0, 1.0)),
    ("exceeds target_norm", lambda: losses.mean_squared_error(LOGITS, torch.ones(2, 3), 1.0)),
    ("must be floats of shape", lambda: losses.absolute_error(LOGITS, torch.ones(2, 1))),
    ("must be floats of shape", lambda: losses.huber(LOGITS, torch.ones(2, 3, dtype=torch.int64))),
    ("'mean' or 'sum'", lambda: losses.multiclass_kr(LOGITS, torch.tensor([0, 1]), "max")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("message", "call"), REFUSED)
def test_trap_17_other_targets_are_refused(message: str, call: Callable[[], Tensor]) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_targets_of_exactly_the_norm_pass() -> None:
    torch.manual_seed(0)
    target = 3 * torch.nn.functional.normalize(torch.randn(200, 7))
    losses.squared_error(torch.zeros(200, 7), target, 3.0)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (torch.tensor([0.0, 2.0]), r"torch\.float32: call target\.long\(\)"),
        (torch.tensor([False, True]), r"torch\.bool: call target\.long\(\)"),
        (torch.eye(3)[:2], r"use target\.argmax\(-1\) for one-hot rows; probabilities need a function"),
        (torch.tensor([1, 3]), r"outside 0 … 2: count classes from 0"),
    ],
    ids=["real", "truths", "one hot", "from 1"],
)
def test_labels_of_another_form_are_refused_with_what_makes_them(target: Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        losses.cross_entropy(torch.zeros(2, 3), target)
