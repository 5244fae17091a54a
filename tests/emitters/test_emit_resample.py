"""Copies, interpolation and convolutions of every padding from .lip to the emitted module, against torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lipcompile.pipeline import check
from tests.emitters.test_emit import assert_layer_computes, assert_within_bounds, build, derive

Map = Callable[[Tensor], Tensor]


def enlarged(x: Tensor, mode: str, corners: bool | None = None) -> Tensor:
    return F.interpolate(x, scale_factor=(2, 3), mode=mode, align_corners=corners)


LAYERS: dict[str, Map] = {
    "pad(1)": lambda x: F.pad(x, (1, 1, 1, 1)),
    "pad(((1, 0), (2, 3)), mode=reflect)": lambda x: F.pad(x, (2, 3, 1, 0), "reflect"),
    "pad((2, 1), replicate)": lambda x: F.pad(x, (1, 1, 2, 2), "replicate"),
    'pad(2, mode="circular")': lambda x: F.pad(x, (2, 2, 2, 2), "circular"),
    "upsample((2, 3))": lambda x: enlarged(x, "nearest"),
    "upsample((2, 3), mode=bilinear)": lambda x: enlarged(x, "bilinear", False),
    "upsample((2, 3), bilinear, true)": lambda x: enlarged(x, "bilinear", True),
    "upsample((2, 3), mode=bicubic)": lambda x: enlarged(x, "bicubic", False),
    "upsample((2, 3), bicubic, align_corners=true)": lambda x: enlarged(x, "bicubic", True),
    "gather((1, 0, 1))": lambda x: x[:, [1, 0, 1]],
    "gather((4, 4, 0), axis=-1)": lambda x: x[..., [4, 4, 0]],
    "expand(3, -1, -1, -1)": lambda x: x[:, None].expand(-1, 3, -1, -1, -1),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_computes_what_torch_computes(tmp_path: Path, layer: str) -> None:
    assert_layer_computes(layer, LAYERS[layer], tmp_path, 2, 4, 5)


NETWORKS = {
    "images": """input x: tensor[2, 4, 4], norm <= 2
        conv2d(4, kernel=3, padding="same", padding_mode=reflect, bias=0.5) groupsort(2)
        conv2d(4, kernel=(3, 2), padding=((2, 3), (4, 0)), padding_mode=replicate) groupsort(2)
        conv_transpose2d(6, kernel=3, stride=2, padding=1, output_padding=(1, 0), groups=2, bias=0.5) groupsort(2)
        conv_transpose2d(4, kernel=2, padding=((0, 1), (1, 0)), dilation=2, constraint=orthogonal)
        upsample(2, mode=bilinear) pad(1, mode=reflect) gather((0, 0, 3)) flatten dense(3)""",
    "lines": """input x: tensor[2, 6], norm <= 2
        conv_transpose1d(3, 4, stride=3, constraint=frobenius(2)) abs upsample(2, bicubic) flatten dense(3)""",
    "volumes": """input x: tensor[2, 2, 2, 3], norm <= 2
        conv_transpose3d(2, kernel=2, stride=2) upsample(2, mode=bilinear, align_corners=true) flatten dense(3)""",
    "broadcast": "input x: tensor[4, 1], norm <= 2\n dense(1) expand(2, 4, 3) transpose(1, 2, 0) flatten dense(3)",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_stay_within_their_bounds(tmp_path: Path, name: str) -> None:
    model = build(derive(tmp_path, NETWORKS[name] + "\n loss cross_entropy"), tmp_path)
    assert_within_bounds(model, "cross_entropy")


TRANSPOSED: dict[str, dict[str, Any]] = {
    "conv_transpose2d(4, 3)": {},
    "conv_transpose2d(4, 3, 2, 1, 1)": {"stride": 2, "padding": 1, "output_padding": 1},
    "conv_transpose2d(4, (3, 2), stride=(1, 2), padding=(2, 0), groups=2)": {
        "stride": (1, 2),
        "padding": (2, 0),
        "groups": 2,
    },
    "conv_transpose2d(4, 2, dilation=3, stride=2, bias=1)": {"dilation": 3, "stride": 2},
}


@pytest.mark.parametrize("layer", TRANSPOSED)
def test_transposed_convolutions_agree_with_torch(tmp_path: Path, layer: str) -> None:
    body = f"input x: tensor[2, 4, 5], norm <= 100\n h = {layer}\n flatten\n dense(2) loss cross_entropy"
    model = build(derive(tmp_path, body), tmp_path)
    seen: list[Tensor] = []
    model.h.register_forward_hook(lambda *passed: seen.append(passed[2]))
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model(x)
    torch.testing.assert_close(seen[0], F.conv_transpose2d(x, model.h.weight, model.h.bias, **TRANSPOSED[layer]))


REFUSED = {
    "pad(4, mode=reflect)": ("LIP103", "reflection"),
    "pad(5, mode=circular)": ("LIP103", "more than once"),
    "conv2d(2, 3, padding=4, padding_mode=reflect)": ("LIP103", "reflection"),
    "conv2d(2, 1, stride=9, padding=((1, 0), (0, 0)))": ("LIP103", "wholly in the padding"),
    "upsample(2, nearest, true)": ("LIP102", "corners"),
    "upsample(2, mode=area)": ("LIP012", "must be one of"),
    "gather((2, 0))": ("LIP102", "no entry 2 in axis 0"),
    "expand(2, 4, 10)": ("LIP102", "does not expand"),
    "expand(4, 5)": ("LIP102", "does not expand"),
    "conv_transpose2d(2, 3, output_padding=1)": ("LIP102", "below its stride"),
    "conv_transpose2d(2, 1, padding=3)": ("LIP103", "leaves no output"),
    "conv_transpose2d(2, 1, stride=9, padding=((28, 0), (0, 0)), output_padding=8)": (
        "LIP103",
        "wholly in the padding",
    ),
    "conv_transpose1d(2, 3)": ("LIP102", "channels first"),
    "conv_transpose2d(3, 3, groups=2)": ("LIP102", "groups"),
    "conv_transpose2d(2, 3, stride=2, output_padding=((1, 0), (0, 0)))": ("LIP012", "one number"),
}


@pytest.mark.parametrize("layer", REFUSED)
def test_what_is_undefined_is_refused(tmp_path: Path, layer: str) -> None:
    path = tmp_path / "model.lip"
    path.write_text(
        f"model net {{ input x: tensor[2, 4, 5], norm <= 1\n {layer}\n flatten dense(2) loss cross_entropy }}"
    )
    code, word = REFUSED[layer]
    found = check(str(path)).diagnostics
    assert [diagnostic.code for diagnostic in found] == [code]
    assert word in found[0].message
