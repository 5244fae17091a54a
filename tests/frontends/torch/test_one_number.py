"""A network may end in one number without an axis of its own, [B], as `squeeze(-1)` leaves it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lipcompile_torch.train.certificate import check_certificate
from torch import Tensor, nn

import lipcompile

B = 12
SIGNS, LABELS = ("hinge", "kr"), ("bce", "multilabel_bce")
REALS = ("squared_error:target_norm=9", "mean_squared_error", "absolute_error", "huber", "smooth_l1")


class Squeezed(nn.Module):
    """One number for each example."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x).squeeze(-1)
        return found


@pytest.mark.parametrize(
    ("loss", "bounds"),
    [*((loss, "clip") for loss in (*SIGNS, *LABELS, *REALS)), ("bce", "theorem"), (REALS[0], "theorem")],
)
def test_losses_and_gradients_are_those_of_a_vector_of_one(loss: str, bounds: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x, reals = torch.randn(B, 6, generator=generator), torch.randn(B, generator=generator)
    target = reals.sign() if loss in SIGNS else (reals > 0).float() if loss in LABELS else reals
    linear = nn.Linear(6, 1)
    how: dict[str, Any] = (
        {} if bounds == "clip" else {"input_norm": 5, "constraint": "spectral:1.0", "bias_bound": 1}
    )
    pair = [
        lipcompile.private(one, (6,), loss=loss, bounds=bounds, verify_import=False, **how)
        for one in (Squeezed(linear), nn.Sequential(linear))
    ]
    found = []
    for model, target_of_one in zip(pair, (target, target[:, None]), strict=True):
        check_certificate(model)
        value = model.criterion(model(x), target_of_one)
        value.backward()
        found.append([value.detach(), *(parameter.grad for parameter in model.parameters())])
    assert pair[0](x).shape == (B,)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
