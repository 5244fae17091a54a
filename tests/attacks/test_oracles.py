"""Oracles that are definitions of their own, against torch's functions."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from lipcompile.ops.resample.rules import Interpolation, Upsample

from . import harness, instances, points
from .families.resample import upsample


def test_transposed_convolutions_are_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    functions: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
    for case in islice(instances.cases("conv_transpose", seed=1), 60):
        conv, point = case.site.attributes, points.random_point(case, generator)
        spread = functions[len(conv.kernel)]
        expected = spread(
            point.xs[0][None],
            point.theta["weight"],
            point.theta.get("bias"),
            conv.stride,
            0,
            conv.output_padding,
            conv.groups,
            conv.dilation,
        )[0]
        for axis, (low, high) in enumerate(conv.padding, start=1):
            expected = expected.narrow(axis, low, expected.shape[axis] - low - high)
        torch.testing.assert_close(harness.run(case, point), expected)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolation_goes_axis_by_axis(mode: Interpolation) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for corners in (False, True) if mode != "nearest" else (False,):
        expected = F.interpolate(
            x[None], scale_factor=(2, 3), mode=mode, align_corners=corners if mode != "nearest" else None
        )
        torch.testing.assert_close(upsample(Upsample((2, 3), mode, corners), x), expected[0])
