"""Attack of networks of Python: nothing is claimed of their norms, so any function of one example may be one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipcompile.core.record import Site
from lipcompile.ops.own.rules import OwnNetwork, Zeros

from ..draw import Draw, Drawn
from ..family import Attack, Tensors, Theta


def zeros(site: Site[Zeros], xs: Tensors, theta: Theta) -> Tensor:
    return torch.zeros(site.output, dtype=torch.float64)


def own_network(site: Site[OwnNetwork], xs: Tensors, theta: Theta) -> Tensor:
    total = torch.stack([torch.exp(x).sum() for x in xs]).prod()
    return total * torch.linspace(-1, 1, site.entries, dtype=torch.float64).reshape(site.output)


def _network(draw: Draw) -> Drawn:
    return OwnNetwork(draw.any_shape(), (0,)), [draw.any_shape()], {}


ATTACKS: Mapping[str, Attack] = {
    "zeros": Attack(lambda draw: (Zeros(draw.any_shape()), [draw.any_shape()], {}), zeros, list),
    "own_network": Attack(_network, own_network, list),
}
