"""Pools and reductions from .lip to the emitted module, against torch's own functions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.diagnostics import Refusal
from lipcompile.ops.pool.rules import AveragePool, pool_shape
from lipcompile.pipeline import check
from tests.attacks.families.pool import average, gathered
from tests.emitters.test_emit import assert_layer_computes, build, derive

Map = Callable[[Tensor], Tensor]
CEIL = "stride=2, padding=1, ceil_mode=true"
LAYERS: dict[str, Map] = {
    f"max_pool(3, {CEIL})": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_pool((2, 3), stride=(3, 2), ceil_mode=true)": lambda x: F.max_pool2d(x, (2, 3), (3, 2), ceil_mode=True),
    f"avg_pool(3, {CEIL})": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    f"avg_pool(2, {CEIL}, count_include_pad=false)": lambda x: F.avg_pool2d(x, 2, 2, 1, True, False),
    "avg_pool(3, padding=1, count_include_pad=false)": lambda x: F.avg_pool2d(x, 3, 3, 1, False, False),
    "avg_pool(3, padding=1, stride=1)": lambda x: F.avg_pool2d(x, 3, 1, 1),
    f"scaled_avg_pool(2, {CEIL})": lambda x: F.avg_pool2d(x, 2, 2, 1, True, divisor_override=1),
    f"l2_pool(2, {CEIL})": lambda x: F.avg_pool2d(x * x, 2, 2, 1, True, divisor_override=1).sqrt(),
    "lp_pool(1, 2)": lambda x: F.lp_pool2d(x.abs(), 1, 2),
    "lp_pool(2, (2, 1))": lambda x: F.lp_pool2d(x, 2, (2, 1)),
    "lp_pool(3, kernel=2, stride=1)": lambda x: F.lp_pool2d(x.abs(), 3, 2, 1),
    "adaptive_avg_pool(3)": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive_avg_pool((2, 7))": lambda x: F.adaptive_avg_pool2d(x, (2, 7)),
    "global_max_pool": lambda x: x.amax((2, 3)),
    "global_max_pool(keep=true)": lambda x: x.amax((2, 3), keepdim=True),
    "global_l2_pool": lambda x: x.square().sum((2, 3)).sqrt(),
    "global_avg_pool": lambda x: x.mean((2, 3)),
    "reduce_mean(0)": lambda x: x.mean(1),
    "reduce_sum((0, -1), keep=true)": lambda x: x.sum((1, 3), keepdim=True),
    "reduce_max(axes=-1)": lambda x: x.amax(3),
    "reduce_min(axes=(1, 2))": lambda x: x.amin((2, 3)),
    "reduce_l2(axes=1, keep=true)": lambda x: x.square().sum(2, keepdim=True).sqrt(),
    "reduce_l1": lambda x: x.abs().sum((1, 2, 3)),
    "logsumexp(axes=0)": lambda x: x.logsumexp(1),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_computes_what_torch_computes(tmp_path: Path, layer: str) -> None:
    assert_layer_computes(layer, LAYERS[layer], tmp_path, 2, 5, 6)


def test_sequences_and_volumes(tmp_path: Path) -> None:
    flat = "flatten dense(2) loss cross_entropy"
    for shape, layer in (
        ("2, 7", "avg_pool(3, stride=2, ceil_mode=true)"),
        ("1, 3, 4, 3", "adaptive_avg_pool(2)"),
    ):
        build(derive(tmp_path, f"input x: tensor[{shape}], norm <= 1\n {layer} lp_pool(3, 2) {flat}"), tmp_path)


REFUSED = {
    "reduce_mean(3)": "does not name distinct axes",
    "reduce_max((0, -3))": "does not name distinct axes",
    "adaptive_avg_pool((2, 2, 2))": "2 numbers",
    "lp_pool(0, 2)": "at least 1",
    "max_pool(2, padding=2)": "wholly in the padding",
    "avg_pool(7, ceil_mode=true, stride=1)": "does not fit",
}


@pytest.mark.parametrize("layer", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, layer: str) -> None:
    path = tmp_path / "model.lip"
    path.write_text(
        f"model m {{ input x: tensor[2, 4, 4], norm <= 1\n {layer} flatten dense(2) loss cross_entropy }}"
    )
    (found,) = check(str(path)).diagnostics
    assert REFUSED[layer] in f"{found.message} {found.help}"


def test_the_oracle_pools_as_torch_does() -> None:
    """Sizes, divisors and the last window of ceil_mode, over all small windows."""
    x = torch.randn(1, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    flags = product((False, True), (False, True))
    numbers = product(range(1, 8), range(1, 5), range(1, 5))
    for (size, kernel, stride), (ceil_mode, counts) in product(numbers, flags):
        for padding in range(kernel // 2 + 1):
            row = x[:, :size]
            pool = AveragePool((kernel,), (stride,), ((padding, padding),), (1,), ceil_mode, counts)
            try:
                shape = pool_shape(pool, ((1, size),))
            except Refusal:
                with pytest.raises(RuntimeError):
                    F.avg_pool1d(row, kernel, stride, padding, ceil_mode, counts)
                continue
            expected = F.avg_pool1d(row, kernel, stride, padding, ceil_mode, counts)
            torch.testing.assert_close(average(pool, row), expected)
            assert shape == expected.shape
            highest = F.max_pool1d(row, kernel, stride, padding, ceil_mode=ceil_mode)
            torch.testing.assert_close(gathered(row, pool, -torch.inf).amax(-1), highest)
