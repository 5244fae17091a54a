"""What rounding within one example may add to a bound: found at its largest, and paid for."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_torch.certify.precision import additions, long_sum_slack, rounding_slack
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import lipcompile
from lipcompile.emitters.torch.emit import emit


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


def test_additions_are_counted_by_hand(tmp_path: Any) -> None:
    """2·(n + √n) for each linear map, forward and backward; √9 times that for a kernel of nine taps."""
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
    expected = 3 * (linear(18) + linear(36)) + 2 * linear(4) + linear(36) + linear(5) + 4 * 5
    assert additions(module.certificate["graph"]) == pytest.approx(expected)


def test_a_clip_of_the_norm_ends_what_came_before_and_frozen_layers_hand_nothing_back(tmp_path: Any) -> None:
    module = built(
        """
    input x: tensor[9], norm <= 1.0
    frozen { dense(16) }
    clip_norm(1.0)
    dense(4)
    loss cross_entropy
    """,
        tmp_path,
    )
    assert additions(module.certificate["graph"]) == pytest.approx(linear(16) + linear(4) + 4 * 4)


@pytest.mark.parametrize("op", ["softmax", "layer_norm(floor=1.0)", "center"])
def test_other_nodes_count_every_entry(op: str, tmp_path: Any) -> None:
    """At least four for each entry of an example."""
    module = built(f"input x: tensor[40], norm <= 1.0\ndense(40)\n{op}\ndense(3)\nloss cross_entropy", tmp_path)
    dense = 2 * linear(40) + linear(40) + linear(3)
    assert additions(module.certificate["graph"]) >= dense + 4 * 3 + 2 * 4 * 40


@pytest.mark.parametrize("terms", [65, 1000, 30_000])
def test_a_linear_map_stretches_by_no_more_than_is_counted(terms: int) -> None:
    """Rows of equal entries, whose partial sums are as large as they can be."""
    for outputs in (1, 3):
        weight = torch.full((outputs, terms), 1 / math.sqrt(terms * outputs))
        x = torch.full((2, terms), 0.1)
        exact = x.double() @ weight.double().T
        found = torch.nn.functional.linear(x, weight)
        assert float((found.double() - exact).norm() / exact.norm()) <= linear(terms) * 2.0**-24
