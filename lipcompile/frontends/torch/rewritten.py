"""Functions of torch that are written with others while a module is traced: torch.onnx has no words for them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import SymInt, Tensor, arange
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributions import Distribution
from torch.nn import Module, functional
from torch.nn.functional import conv_transpose2d, embedding, leaky_relu, scaled_dot_product_attention, unfold
from torch.nn.modules import transformer

from lipcompile.ops.counting import Window


@contextmanager
def rewritten() -> Iterator[None]:
    """Trace distances, products, leaky slopes, bags of rows and attention of one head as what they consist of."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(transformer, "_detect_is_causal_mask", _is_said_to_be_causal))
        stack.enter_context(patch.object(Module, "to", _unless_there(Module.to)))
        stack.enter_context(patch.object(Distribution, "_validate_args", False))  # it looks at the numbers
        own: Any = Tensor.data
        stack.enter_context(patch.object(Tensor, "data", property(Tensor.detach, own.__set__)))
        stack.enter_context(patch.object(FakeTensor, "tolist", _of_known_numbers(FakeTensor.tolist)))
        for home, write in (
            (torch, _arange),
            (torch, _cdist),
            (torch, _column_stack),
            (torch, _conv2d),
            (functional, _conv2d),
            (torch, _einsum),
            (torch.fft, _fftfreq),
            (torch.fft, _rfftfreq),
            (functional, _fold),
            (functional, _rrelu),
            (functional, _grid_sample),
            (functional, _embedding_bag),
            (functional, _instance_norm),
            (functional, _scaled_dot_product_attention),
        ):
            name = write.__name__.removeprefix("_")
            stack.enter_context(patch.object(home, name, _instead(getattr(home, name), write)))
        yield


def _instead(original: Callable[..., Tensor], write: Callable[[Mapping[str, Any]], Tensor | None]) -> Any:
    """Return a function that writes a call with others, or calls the original where that gives None."""
    signature = inspect.signature(original if inspect.isfunction(original) else _any)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        made = write(given.arguments)
        return original(*args, **kwargs) if made is None else made

    return call


def _unless_there(move: Callable[..., Module]) -> Callable[..., Module]:
    """Leave a module alone that has the kind of numbers which it is to have: a trace cannot replace weights."""

    @wraps(move)
    def to(module: Module, *args: Any, **kwargs: Any) -> Module:
        (kind, *others) = (*args, *kwargs.values()) or (None,)
        held = {one.dtype for one in (*module.parameters(), *module.buffers()) if one.is_floating_point()}
        return module if not others and {kind} == held else move(module, *args, **kwargs)

    return to


def _is_said_to_be_causal(_mask: Tensor | None, is_causal: bool | None = None, _size: int | None = None) -> bool:
    """Return the hint that the caller gave; torch looks at the mask without one, which is a branch on numbers."""
    return is_causal is True


def _any(*tensors: Any, **named: Any) -> None:
    """Have the signature of what is not written in Python."""


def _arange(given: Mapping[str, Any]) -> Tensor | None:
    """Whole numbers that are known keep them: a trace knows none of a tensor, also of a list of axes."""
    numbers = given["tensors"]
    if not all(isinstance(number, int) for number in numbers) or {"start", "end", "step"} & set(given["named"]):
        return None
    made = arange(*numbers, **given["named"])
    if not made.is_floating_point() and not made.is_inference():
        made.known_numbers = [*range(*numbers)]  # type: ignore[attr-defined]
    return made


def _of_known_numbers(tolist: Callable[[FakeTensor], Any]) -> Callable[[FakeTensor], Any]:
    """Return the numbers of `arange` where nothing was written into it."""

    def listed(tensor: FakeTensor) -> Any:
        known = getattr(tensor, "known_numbers", None)
        return tolist(tensor) if known is None or tensor._version else [*known]

    return listed


def _cdist(given: Mapping[str, Any]) -> Tensor:
    """Distances of rows, as norms of differences."""
    differences: Tensor = given["x1"].unsqueeze(-2) - given["x2"].unsqueeze(-3)
    return differences.norm(given["p"], -1)  # type: ignore[no-any-return]


def _column_stack(given: Mapping[str, Any]) -> Tensor | None:
    """Vectors as columns, beside each other and beside matrices; torch.onnx makes a sequence of them."""
    if given["named"].keys() - {"tensors"}:
        return None
    (tensors,) = given["tensors"] or (given["named"]["tensors"],)
    return torch.cat([one.reshape(one.numel(), 1) if one.dim() < 2 else one for one in tensors], 1)


def _conv2d(given: Mapping[str, Any]) -> Tensor | None:
    """A group for each example, as where each example has kernels of its own: windows, times its kernels."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    of = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    of |= dict(zip(names, given["tensors"], strict=False)) | given["named"]
    image, kernels, groups = of["input"], of["weight"], of["groups"]
    if not isinstance(groups, SymInt) or of["bias"] is not None or isinstance(of["padding"], str):
        return None
    apart, own = image.reshape(groups, kernels.shape[1], *image.shape[2:]), kernels.flatten(1)
    windows = unfold(apart, kernels.shape[2:], of["dilation"], of["padding"], of["stride"])
    rows = own.reshape(groups, -1, own.shape[1]) @ windows  # [groups, channels of each, entries]
    return rows.reshape(1, -1, *_sizes(image.shape[2:], kernels.shape[2:], of))


def _sizes(sizes: Any, kernel: Any, of: Mapping[str, Any]) -> list[int]:
    """Return the sizes of the output of a convolution."""
    stride, padding, dilation = (_pair(of[name]) for name in ("stride", "padding", "dilation"))
    axes = zip(sizes, kernel, stride, dilation, zip(padding, padding, strict=True), strict=True)
    return [Window(*axis).outputs for axis in axes]


def _einsum(given: Mapping[str, Any]) -> Tensor | None:
    """Diagonals where a term has a letter twice. Three operands or more go from the left: of the first two, the
    letters are kept that are used later.
    """
    equation, *operands = given["args"]
    if not isinstance(equation, str) or "..." in equation or "->" not in equation:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    terms = inputs.split(",")
    if any(len(set(term)) < len(term) for term in terms):
        along = [*map(_diagonals, terms, operands)]
        return torch.einsum(f"{','.join(term for term, _ in along)}->{output}", *(made for _, made in along))
    if len(operands) < 3:
        return None
    first, second, *others = terms
    kept = "".join(sorted({*first, *second} & set("".join((*others, output)))))
    product = torch.einsum(f"{first},{second}->{kept}", *operands[:2])
    return torch.einsum(f"{','.join((kept, *others))}->{output}", product, *operands[2:])


def _diagonals(term: str, operand: Tensor) -> tuple[str, Tensor]:
    """Return the letters, each once, and the entries whose places along the axes of one letter are equal."""
    for letter in term:
        while term.count(letter) > 1:
            axes = [place for place, other in enumerate(term) if other == letter][:2]
            operand = operand.diagonal(0, *axes)
            term = "".join(other for place, other in enumerate(term) if place not in axes) + letter
    return term, operand


def _fftfreq(given: Mapping[str, Any]) -> Tensor:
    """Whole numbers over the length: those from 0 on, then the negative ones."""
    return _frequencies(given, lambda count: [*range((count + 1) // 2), *range(-(count // 2), 0)])


def _rfftfreq(given: Mapping[str, Any]) -> Tensor:
    """Whole numbers from 0 to half the length, over the length."""
    return _frequencies(given, lambda count: [*range(count // 2 + 1)])


def _frequencies(given: Mapping[str, Any], numbers: Callable[[int], list[int]]) -> Tensor:
    named = given["named"]
    values = list(given["tensors"]) + [named[name] for name in ("n", "d") if name in named]
    count, spacing = int(values[0]), float(values[1]) if len(values) > 1 else 1.0
    return torch.tensor(numbers(count), dtype=torch.get_default_dtype()) / (count * spacing)


def _fold(given: Mapping[str, Any]) -> Tensor | None:
    """Windows [B, channels·taps, places] that are added up: a transposed convolution puts taps in their places."""
    windows, names = given["input"], ("output_size", "kernel_size", "stride", "padding", "dilation")
    sizes, kernel, stride, padding, dilation = (_pair(given[name]) for name in names)
    if windows.dim() != 3:
        return None
    channels = int(windows.shape[1]) // math.prod(kernel)
    taps = torch.eye(math.prod(kernel)).view(-1, 1, *kernel).repeat(channels, 1, 1, 1)
    axes = [*zip(kernel, stride, dilation, padding, strict=True)]
    places = [Window(size, *axis[:3], (axis[3],) * 2).outputs for size, axis in zip(sizes, axes, strict=True)]
    more = [
        (size + 2 * pad - spread * (reach - 1) - 1) % step  # entries behind the last window
        for size, (reach, step, spread, pad) in zip(sizes, axes, strict=True)
    ]
    image = windows.unflatten(2, places)
    return conv_transpose2d(image, taps.to(windows), None, stride, padding, more, channels, dilation)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _rrelu(given: Mapping[str, Any]) -> Tensor | None:
    """In evaluation mode, the slope below zero is the mean of both limits."""
    if given["training"]:
        return None
    return leaky_relu(given["input"], (given["lower"] + given["upper"]) / 2, given["inplace"])


def _grid_sample(given: Mapping[str, Any]) -> Tensor | None:
    """Images [B, C, H, W] at places [B, h, w, 2]: shares of all columns and rows, nearly all of them 0."""
    image, grid, mode, padding = given["input"], given["grid"], given["mode"], given["padding_mode"]
    if image.dim() != 4 or mode not in ("bilinear", "nearest") or padding not in ("zeros", "border"):
        return None
    columns, rows = (
        _shares(grid[..., place].flatten(1), size, mode, padding == "border", given["align_corners"])
        for place, size in enumerate((image.shape[3], image.shape[2]))
    )
    lines = columns.unsqueeze(1) @ image.transpose(2, 3)  # [B, C, h·w, H]
    found: Tensor = (lines * rows.unsqueeze(1)).sum(-1).view(*image.shape[:2], *grid.shape[1:3])
    return found


def _shares(places: Tensor, size: int, mode: str, ends: bool, corners: bool | None) -> Tensor:
    """Return the share of each of `size` entries at places [B, n] of an axis, which goes from -1 to 1."""
    at = (places + 1) * ((size - 1) / 2) if corners else ((places + 1) * size - 1) / 2
    at = (at.clamp(0, size - 1) if ends else at).unsqueeze(2)
    entries = torch.arange(size, dtype=at.dtype)
    if mode == "nearest":
        return (torch.round(at) == entries).to(at.dtype)
    before = torch.floor(at)
    after: Tensor = at - before
    return (before == entries) * (1 - after) + (before + 1 == entries) * after


def _embedding_bag(given: Mapping[str, Any]) -> Tensor | None:
    """Bags [B, n], one for each example: the sum, the mean or the maximum of the rows that are no padding."""
    tokens, mode, padding = given["input"], given["mode"], given["padding_idx"]
    if tokens.dim() != 2 or given["max_norm"] is not None or given["scale_grad_by_freq"]:
        return None
    rows = embedding(tokens, given["weight"])
    if given["per_sample_weights"] is not None:
        rows = rows * given["per_sample_weights"].unsqueeze(-1)
    if padding is None:
        return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)
    kept = (tokens != padding % len(given["weight"])).unsqueeze(-1)
    count = kept.sum(1)
    if mode == "max":
        return rows.masked_fill(~kept, -math.inf).amax(1).masked_fill(count == 0, 0.0)
    total: Tensor = (rows * kept).sum(1)
    return total if mode == "sum" else total / count.clamp(min=1)


def _instance_norm(given: Mapping[str, Any]) -> Tensor | None:
    """By stored statistics, which are one for all examples, it is a batch normalisation in evaluation mode."""
    from torch.nn.functional import batch_norm

    if given["use_input_stats"]:
        return None
    names = ("input", "running_mean", "running_var", "weight", "bias", "eps")
    return batch_norm(**{name: given[name] for name in names})


def _scaled_dot_product_attention(given: Mapping[str, Any]) -> Tensor | None:
    """Attention without an axis of heads has one head."""
    tensors, named = given["tensors"], given["named"]
    query: Tensor = tensors[0] if tensors else named["query"]
    if query.dim() != 3:  # batch, tokens, features
        return None
    named = {name: _as_head(value) for name, value in named.items()}
    return scaled_dot_product_attention(*map(_as_head, tensors), **named).squeeze(1)


def _as_head(value: Any) -> Any:
    return value.unsqueeze(1) if isinstance(value, Tensor) and value.dim() == 3 else value
