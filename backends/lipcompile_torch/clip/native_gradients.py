"""Weight gradients of examples by the kernels of :mod:`..native`, for :mod:`.example_gradients`."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import native
from ..native.library import GradientPlan, GradientScales, Kernels, Operand
from .factors import Factors
from .outer_product_plans import plan
from .outer_products import Places, Plan, Sizes, Tile

_MOST_PARTS = 16  # of a batch, whose sums are added at the end
_LEAST_PART = 32  # examples, but for two parts
_MOST_SUMS = 2**22  # numbers, but for two parts


@dataclass(frozen=True, slots=True)
class Scaling:
    """The factors that scale the gradients P_i of examples.

    Args:
        limit, room, regulariser: the factor is 1 where the norm √(‖P_i‖² + beside_i) is at most ``limit``, else
            room/(norm + regulariser), and 0 where it is not finite.
        beside: [B] in float64; None for zeros.
    """

    limit: float
    room: float
    regulariser: float
    beside: Tensor | None

    def factors(self, norms: Tensor) -> Tensor:
        """Return the factors of these norms, [B] in float64."""
        factor = self.room / (norms + self.regulariser if self.regulariser else norms)  # 0 of an infinite norm
        kept = torch.where(norms <= self.limit, 1.0, factor) if self.limit >= 0 else factor
        return kept.nan_to_num_(nan=0.0)


class NativeGradients:
    """Weight gradients of the examples of a batch.

    Args:
        code: the kernels.
        plan: of the operands.
        read, made: operands [B, channels, positions] in float32 or bfloat16, of which one of the last two axes has
            stride 1.
    """

    def __init__(self, code: Kernels, plan: Plan, read: Tensor, made: Tensor) -> None:
        self._code, self._plan, self._read, self._made = code, plan, read, made

    def norms(self) -> Tensor:
        """Return ‖P_i‖, [B]."""
        norms = self._per_example()
        self._run(None, norms, None, None)
        return norms

    def scaled(self, factors: Tensor | None) -> Tensor:
        """Return Σ factor_i·P_i, of factors [B] in float64; 1 if there are none."""
        totals = self._totals()
        self._run(factors, None, None, totals)
        return self._plan.restored(totals[0])

    def clipped(self, scaling: Scaling) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ factor_i·P_i, factors and norms."""
        factors, norms, totals = self._per_example(), self._per_example(), self._totals()
        self._run(factors, norms, scaling, totals)
        return self._plan.restored(totals[0]), factors, norms

    def held(self) -> HeldGradients:
        """Return all P_i, in float32 as they are computed."""
        norms = self._per_example()
        gradients = torch.empty(len(self._read), self._plan.size, dtype=torch.float32, device="cpu")
        self._run(None, norms, None, None, gradients)
        return HeldGradients(self._code, self._plan, gradients, norms)

    @property
    def size(self) -> int:
        """Numbers of float32 that it takes to hold one P_i."""
        return self._plan.size

    def _per_example(self) -> Tensor:
        return torch.empty(len(self._read), dtype=torch.float64, device="cpu")

    def _totals(self) -> Tensor:
        """Return room for sums over parts of the batch: their number does not depend on that of threads."""
        examples = len(self._read)
        parts = max(min(_MOST_PARTS, examples // _LEAST_PART, _MOST_SUMS // self._plan.size), 2)
        parts = min(2 ** (parts.bit_length() - 1), examples)
        return torch.empty(parts, self._plan.size, dtype=torch.float64, device="cpu")

    def _run(
        self,
        factors: Tensor | None,
        norms: Tensor | None,
        scaling: Scaling | None,
        totals: Tensor | None,
        held: Tensor | None = None,
    ) -> None:
        examples, given = len(self._read), byref(self._description())
        parts = min(examples, _MOST_PARTS) if totals is None else len(totals)
        threads = min(torch.get_num_threads(), parts)
        room = self._code.example_gradients_room(given, scaling is not None)
        rooms = torch.empty(threads, room, dtype=torch.float64, device="cpu")
        beside = None if scaling is None else scaling.beside
        numbers = (0.0, 0.0, 0.0) if scaling is None else (scaling.limit, scaling.room, scaling.regulariser)
        are_given = scaling is None and factors is not None
        scales = byref(GradientScales(*map(_address, (factors, norms, beside)), *numbers, are_given))
        rooms_and_held = rooms.data_ptr(), _address(held)
        self._code.example_gradients(given, examples, scales, parts, _address(totals), *rooms_and_held, threads)

    def _description(self) -> GradientPlan:
        plan = self._plan
        read, made = _operand(self._read, plan.read), _operand(self._made, plan.made)
        operands = (read, made) if plan.role == "windows" else (made, read)
        steps = plan.lanes_step, plan.entries_step, plan.entry_step, plan.width, plan.role == "groups"
        tables = plan.segments, plan.units, plan.rows
        addresses = (number for table in tables for number in (table.ctypes.data, len(table)))
        return GradientPlan(*operands, *steps, *addresses, plan.row_width)


class HeldGradients:
    """Weight gradients P_i of the examples of a batch, as native code computed them.

    Args:
        code: the kernels.
        plan: how a gradient is laid out.
        gradients: [B, plan.size] in float32; lanes that are not there may hold anything.
        norms: ‖P_i‖, [B] in float64.
    """

    def __init__(self, code: Kernels, plan: Plan, gradients: Tensor, norms: Tensor) -> None:
        self._code, self._plan, self._gradients, self._norms = code, plan, gradients, norms

    @property
    def examples(self) -> int:
        """B."""
        return len(self._gradients)

    def norms(self) -> Tensor:
        """Return ‖P_i‖, [B] in float64; infinity or NaN where P_i is not finite."""
        return self._norms

    def scaled(self, factors: Factors) -> Tensor:
        """Return Σ factor_i·P_i in float64; a factor of 0 adds nothing, not even NaN."""
        values = factors.values.contiguous()
        total = torch.empty(self._plan.size, dtype=torch.float64, device="cpu")
        sizes = self._gradients.data_ptr(), *self._gradients.shape
        self._code.sum_held(*sizes, values.data_ptr(), total.data_ptr(), torch.get_num_threads())
        return self._plan.restored(total)

    def rows(self, some: slice) -> Tensor:
        """Return P_i of some examples, [c, entries] in float64."""
        return torch.stack([self._plan.restored(row).flatten() for row in self._gradients[some].double()])


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


_READ = (torch.float32, torch.bfloat16)


def _operand(tensor: Tensor, places: Places) -> Operand:
    """Return where the entries of a tensor [B, channels, positions] are, and where they go."""
    spans = places.spans.ctypes.data, len(places.spans), places.places.ctypes.data
    extent = 0 if tensor.dtype == torch.float32 else _extent(tensor)
    strides = tensor.stride()
    return Operand(tensor.data_ptr(), extent, *strides, tensor.shape[2], places.step, *spans, places.room)


def _extent(tensor: Tensor) -> int:
    """Return how many entries there are from the first to the last one of an example."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape[1:], tensor.stride()[1:], strict=True))


def _aligned(tensor: Tensor) -> Tensor:
    """Return [B, channels, *positions] as [B, channels, positions], of which one of the last two has stride 1."""
    flat = tensor.flatten(2)
    return flat if 1 in flat.stride()[1:] else flat.contiguous()


def native_gradients(sizes: Sizes, read: Tensor, made: Tensor) -> NativeGradients | None:
    """Return the weight gradients of examples, of operands [B, channels, *positions]. None if there is no native
    code for them.
    """
    code = native.kernels
    if code is None or not native.is_eager() or not code.about.tile_vectors:
        return None
    read, made = operands = tuple(one.float() if one.dtype == torch.float16 else one for one in (read, made))
    if any(one.dtype not in _READ or not native.is_plain(one) or one.numel() == 0 for one in operands):
        return None
    flat = _aligned(read), _aligned(made)
    tile = Tile(native.LANES, code.about.tile_vectors, code.about.tile_entries)
    return NativeGradients(code, plan(sizes, tile, are_side_by_side=flat[0].stride(1) == 1), *flat)
