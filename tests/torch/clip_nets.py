"""Emitted modules with bounds by clip, and the clipped gradients that `torch.func` computes for them."""

from __future__ import annotations

import itertools
import math
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from lipcompile.core.backend import instantiate
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.options import ModelOptions
from lipcompile.pipeline import check

B = 6
counter = itertools.count()

# Every layer with parameters, and every way in which one is used.
NETWORKS = {
    "vectors": "input x: tensor[5]; dense(7, bias=true); tanh; dense(3)",
    "tokens": "input x: tensor[4, 5]; dense(7, bias=true); tanh; dense(3); reduce_mean(axes=(0,))",
    "images": """input x: tensor[2, 7, 6]
        conv2d(4, kernel=3, stride=2, padding=1, bias=true); tanh
        conv2d(8, kernel=(1, 3), dilation=(1, 1), groups=4); tanh; flatten; dense(3)""",
    "rows": "input x: tensor[2, 9]; conv1d(4, kernel=3, dilation=2, bias=true); tanh; flatten; dense(3)",
    "volumes": "input x: tensor[2, 4, 4, 3]; conv3d(3, kernel=2, bias=true); tanh; flatten; dense(3)",
    "transposed": """input x: tensor[3, 4, 4]
        conv_transpose2d(2, kernel=3, stride=2, padding=1, bias=true); tanh; flatten; dense(3)""",
    "pointwise": "input x: tensor[3, 4, 4]; scale; bias; prelu; flatten; dense(6); householder; dense(3)",
    "tokens of a table": """input x: tokens[7]
        embedding(5, 4); class_token(1); attention(2); tanh; flatten; dense(3)""",
    "shared": """input x: tensor[4]
        dense(4, bias=true, share="w"); tanh; dense(4, bias=true, share="w"); tanh; dense(3)""",
    "shared over images": """input x: tensor[2, 5, 5]
        conv2d(2, kernel=3, padding=1, share="k"); tanh; conv2d(2, kernel=3, padding=1, share="k"); tanh
        flatten; dense(3)""",
    "tied": 'input x: tensor[5]; dense(4, share="w"); bias; tanh; dense_transpose(5, share="w"); tanh; dense(3)',
    "tied over tokens": """input x: tensor[4, 5]
        dense_transpose(3, bias=true, share="w"); tanh; dense(5, share="w"); tanh; dense(3)
        reduce_mean(axes=(0,))""",
    "tied to a table": """input x: tokens[7]
        embedding(5, 4, share="w"); tanh; dense(5, share="w"); tanh; flatten; dense(3)""",
    "recurrent by itself": "input x: tensor[4, 3]; gru(5, bias=true, clip=0.3); flatten; dense(3)",
    "recurrent": "input x: tensor[4, 3]; lstm(5, bias=true); flatten; dense(3)",
}


@cache
def emitted(source: str, bounds: str) -> str:
    """Return the text of a module: tests have few networks, and each of them in many settings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.lip"
        path.write_text(source)
        derivation = check(str(path), ModelOptions(bounds=bounds))  # type: ignore[arg-type]
    assert derivation.ok, derivation.diagnostics
    return emit(derivation)


def model(body: str, folder: Path, bounds: str = "clip") -> Any:
    """Return an emitted module in float32 whose weights are some times larger than they start."""
    path = folder / f"model{next(counter)}.lip"
    path.write_text(f"model net {{ {body}; loss cross_entropy }}")
    torch.manual_seed(0)
    module = instantiate(path.with_suffix(".py"), emitted(path.read_text(), bounds))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def batch(module: Any, size: int = B, scale: float = 3.0, views: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Return examples [size, *views, *input_shape] and labels."""
    generator = torch.Generator().manual_seed(1)
    shape = (size, *views, *module.input_shape)
    if module.input_tokens:
        x = torch.randint(0, 5, shape, generator=generator)
    else:
        x = scale * torch.randn(shape, generator=generator)
    return x, torch.randint(0, 3, (size,), generator=generator)


def per_example(module: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the gradient of each example's loss, [B, *parameter], in float64; of views that of their mean."""
    parameters = {name: p.detach().double() for name, p in module.named_parameters()}

    def loss(given: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        rows = example if has_views(module, x) else example[None]
        output = functional_call(module, given, (rows,))
        return torch.nn.functional.cross_entropy(output, label.expand(len(rows)))

    x = x if module.input_tokens else x.double()
    with module.gate.bypassed():
        if module.input_tokens:  # which a table takes one at a time
            found = [grad(loss)(parameters, one, label) for one, label in zip(x, y, strict=True)]
            return {name: torch.stack([one[name] for one in found]) for name in parameters}
        gradients: dict[str, Tensor] = vmap(grad(loss), (None, 0, 0))(parameters, x, y)
    return gradients


def expected(module: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the clipped sum over the normaliser, group by group, at the lengths that they have now."""
    gradients, sums = per_example(module, x, y), {}
    for group in module.clips:
        rows = torch.cat([gradients[name].flatten(1) for name in group.parameters], dim=1)
        norms, length = rows.norm(dim=1), module.clip_lengths.get(group.name, group.length)
        if group.regulariser is None:
            factors = (length / norms).clamp(max=1.0)
        else:
            factors = group.length / (norms + group.regulariser)
        for name in group.parameters:
            sums[name] = torch.einsum("b,b...->...", factors, gradients[name]) / module.normaliser
    return sums


def has_views(module: Any, x: Tensor) -> bool:
    return x.dim() == 2 + len(module.input_shape)


def outputs(module: Any, x: Tensor) -> Any:
    """Return the outputs of examples, or of views."""
    with module.on_views() if has_views(module, x) else nullcontext():
        return module(x)


def clipped(module: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the gradients of one backward pass, as an engine would have them."""
    module.guard_layers()
    module.gate.reset()
    module.zero_grad()
    module.criterion(outputs(module, x), y).backward()
    assert not module.gate.aliases.foreign
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.requires_grad}


def whole(gradients: dict[str, Tensor], names: Any = None) -> float:
    return math.sqrt(
        sum(float(g.double().square().sum()) for n, g in gradients.items() if not names or n in names)
    )
