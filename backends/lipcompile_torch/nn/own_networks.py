"""Networks that no rule covers: modules of torch, each example alone. Emitted files find them in `functional`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..clip.example_passes import forgetting
from .examples_alone import each_alone


class OwnInput(Protocol):
    """An argument of a network: empty names are given by position; the kind of numbers, None for real ones."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> torch.dtype | None: ...  # noqa: D102


class OwnNetwork(Protocol):
    """A module of torch, which is never trained itself, and what its arguments and trained parameters are."""

    @property
    def module(self) -> nn.Module: ...  # noqa: D102
    @property
    def inputs(self) -> Sequence[OwnInput]: ...  # noqa: D102
    @property
    def parameters(self) -> Collection[str]:
        """Their names in `module.named_parameters`, in the order of the operands; complex ones come as pairs."""
        ...


_ONE_PASS = RLock()
"""A pass has its own weights and attributes in a network, so no other thread's may begin meanwhile."""


def zeros(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return zeros [B, *size] for each example of x, [B, …], of real numbers or tokens."""
    kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    return torch.zeros((), dtype=kind, device=x.device).expand(len(x), *size)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def own_network(network: OwnNetwork | None, training: bool, size: tuple[int, ...], *operands: Tensor) -> Tensor:
    """Return the outputs [B, *size] of a network that is given each example alone, in a batch of one.

    Args:
        network: None where nobody has set it.
        training: whether it is in the mode that it was imported in, or in evaluation mode.
        size: of the output of one example.
        operands: the arguments [B, …] of the network, then each example's copy of each parameter, [B, …].

    Formal guarantees: no row of the output depends on another example, as :func:`.examples_alone.each_alone` has
    it. What a pass writes into buffers and attributes of the network is forgotten.

    Raises:
        ValueError: there is no network, or it returns something else than a real tensor of this size.
    """
    if network is None:
        raise ValueError(
            "the own_network of this module is a module of torch, which a file does not hold: use the one that "
            "lipcompile.private or lipcompile.train returns, or lipcompile.load_trained(module, folder, example)"
        )
    given, copies = operands[: len(network.inputs)], operands[len(network.inputs) :]
    if not len(given[0]):
        return torch.cat([copy.reshape(0) for copy in copies]).reshape(0, *size)

    def of_one(arguments: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        with forgetting(network.module):
            output: Any = _called(network, arguments, parameters)
        if not isinstance(output, Tensor) or not output.is_floating_point() or output.shape != (1, *size):
            found = f"{output.dtype} {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(f"the network returns {found} for one example, not real numbers {[1, *size]}")
        return output[0].to(operands[-1].dtype)

    def calm(arguments: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        with _in_mode(network.module, training=False):
            return of_one(arguments, parameters)

    with _ONE_PASS, _in_mode(network.module, training):
        return each_alone(
            of_one, given, copies, what="the network", owner=network, calm=calm, is_training=training, public=1
        )


def _called(network: OwnNetwork, arguments: Sequence[Tensor], parameters: Sequence[Tensor]) -> Any:
    """Call a network on one example with these values of its parameters, and copies of what it does not train.

    It computes with the kinds of numbers that it was imported with: its code may make constants of them.
    """
    stored = {**dict(network.module.named_parameters()), **dict(network.module.named_buffers())}
    device = parameters[0].device
    trained = dict(zip(network.parameters, parameters, strict=True))
    state = {name: one.to(device, copy=True) for name, one in stored.items() if name not in trained}
    state |= {name: _as(stored[name], one) for name, one in trained.items()}
    real = next((one.dtype for one in stored.values() if one.is_floating_point()), parameters[0].dtype)
    args, kwargs = list[Tensor](), dict[str, Tensor]()
    for own, x in zip(network.inputs, arguments, strict=True):
        row = x.to(own.kind or real, copy=True)[None]  # which the module may write into
        if own.name:
            kwargs[own.name] = row
        else:
            args.append(row)
    return functional_call(network.module, state, tuple(args), kwargs)


def _as(stored: Tensor, values: Tensor) -> Tensor:
    """Return values in the shape and the kind of numbers of a parameter; of a complex one they are pairs."""
    if stored.is_complex():
        return torch.view_as_complex(values.to(stored.real.dtype).reshape(*stored.shape, 2))
    return values.to(stored.dtype).reshape(stored.shape)


@contextmanager
def _in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Put a network into evaluation mode meanwhile, unless it trains: then its parts stay as they were."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        if not training:
            module.eval()
        yield
    finally:
        for part, mode in modes:
            part.training = mode
