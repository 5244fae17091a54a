"""Passes over memory in native code (`kernels/`), where a compiler was there when the package was installed.

Without native code, the callers do the same with torch's operations: `kernels` is None then.

Imports: lipcompile_torch.devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import byref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ..devices import is_processor
from .library import Compared, FingerprintKey, Kernels, KernelStack, NoisyPart, WordSource, load
from .memory_rows import Part, flat

kernels, why_missing = load()

StreamPlace = tuple[bytes, int]
"""Key and first counter of a stream of AES, 16 bytes each, and the number of a block of it."""


_IS_DOUBLE = {torch.float32: False, torch.float64: True}
_IS_HALF = {torch.float16: True, torch.float32: False}


def _code() -> Kernels:
    """The kernels, where it is known that they are there."""
    assert kernels is not None
    return kernels


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is memory of the processor's: no subclass, no stand-in for one, with nothing to negate, not
    freed, and no zeros without memory.
    """
    return (
        type(tensor) is Tensor
        and is_processor(tensor.device)
        and tensor.layout is torch.strided
        and not tensor.is_neg()
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    )


def is_eager() -> bool:
    """Whether torch's operations do no more than compute: they are not compiled, traced, transformed, or
    differentiated forwards. Nobody sees what native code does.
    """
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
    )


# --- random words, and normals ---


def has_aes() -> bool:
    """Whether there are streams of AES."""
    return kernels is not None and bool(kernels.about.has_aes)


def _checked(place: StreamPlace) -> StreamPlace:
    if len(place[0]) != 32 or not has_aes():
        raise ValueError("16 bytes of key and 16 of counter, and a processor with AES, are needed")
    return place


def fill_(words: NDArray[np.uint64], place: StreamPlace) -> None:
    """Replace an even number of words by those of a stream."""
    key, block = _checked(place)
    _code().key_stream(key, block, len(words) // 2, words.ctypes.data)


def adds_normals(parts: Sequence[Part]) -> bool:
    """Whether :func:`add_normals_` is there for these flat tensors."""
    return kernels is not None and all(
        tensor.dtype in _IS_DOUBLE and is_plain(tensor) and tensor.is_contiguous() for tensor, _ in parts
    )


def add_normals_(parts: Sequence[Part], block: int, words: NDArray[np.uint64] | StreamPlace, threads: int) -> None:
    """Add scale·normal to flat tensors, see :mod:`~.noise.processor`.

    Args:
        parts: as :func:`adds_normals` wants them, of n entries.
        block: so many entries share pairs of words, an even number; the last ones are fewer.
        words: [n], one more if n is odd; or where they begin in a stream.
    """
    source = WordSource(0, *_checked(words)) if isinstance(words, tuple) else WordSource(words.ctypes.data)
    given: Any = [(row.data_ptr(), row.numel(), _IS_DOUBLE[row.dtype], scale) for row, scale in parts]
    count = sum(entries for _, entries, _, _ in given)
    _code().add_normals(byref(source), count, block, (NoisyPart * len(given))(*given), len(given), threads)
    for tensor, _ in parts:
        increment_version(tensor)


# --- fingerprints, and norms ---


def has_words(row: Tensor) -> bool:
    """Whether :func:`fingerprint` is there for this tensor [n]."""
    return kernels is not None and is_plain(row)


def fingerprint_rows(rows: Sequence[Tensor], inner: Tensor, outer: Tensor) -> Tensor:
    """Return the fingerprint of tensors [n] of entries side by side: see :mod:`.fingerprint`; 0-dim int64.

    Args:
        rows: for which `has_words` says so.
        inner: the keys of the words of a block, int64.
        outer: those of all blocks, int64.
    """
    code, threads, total = _code(), torch.get_num_threads(), 0
    keys = outer.data_ptr()
    for row in rows:
        key = FingerprintKey(inner.data_ptr(), keys, len(inner))
        total += code.fingerprint(row.data_ptr(), row.nbytes, byref(key), threads)
        keys += outer.itemsize * -(-row.nbytes // (4 * len(inner)))
    return torch.tensor((total + 2**63) % 2**64 - 2**63, dtype=torch.int64, device="cpu")


def norm(tensor: Tensor) -> Tensor | None:
    """Return the Euclidean norm of a float32 tensor, 0-dim float64, off by a relative (n + 3)·2^-53 at most; None
    if there is no native code for it.
    """
    if kernels is None or tensor.dtype != torch.float32 or not is_plain(tensor):
        return None
    if not tensor.is_contiguous() and flat(tensor) is None:
        return None
    squares = kernels.sum_of_squares(tensor.data_ptr(), tensor.numel(), torch.get_num_threads())
    return torch.tensor(math.sqrt(squares), dtype=torch.float64, device="cpu")


# --- a weight, and a copy of it ---


def _are_alike(weight: Tensor, copy: Tensor) -> bool:
    """Whether native code takes the two: entries of both lie alike."""
    if weight.dtype != torch.float32 or copy.dtype not in _IS_HALF:
        return False
    if weight.shape != copy.shape or weight.stride() != copy.stride():
        return False
    return is_plain(weight) and is_plain(copy)


def _pair(weight: Tensor, copy: Tensor, share: float) -> Any:
    return byref(Compared(weight.data_ptr(), copy.data_ptr(), _IS_HALF[copy.dtype], share))


def difference_norm(weight: Tensor, copy: Tensor, share: float) -> Tensor | None:
    """Return the Euclidean norm of weight - share·copy, computed in float32 with one rounding: 0-dim float64, off
    by a relative (n + 3)·2^-53 at most; None if there is no native code for it.
    """
    if kernels is None or not _are_alike(weight, copy) or flat(weight) is None:
        return None
    squares = kernels.squared_difference(_pair(weight, copy, share), weight.numel(), torch.get_num_threads())
    return torch.tensor(math.sqrt(squares), dtype=torch.float64, device="cpu")


ROUNDINGS = 36
"""How many roundings to float32 there are at most on the way of a product to its sum, see `kernels/gram.c`."""


def gram_moments(weight: Tensor, copy: Tensor, share: float, height: int, count: int) -> Tensor | None:
    """Return the first ``count`` :func:`~..certify.drift.moments`, at least two, of the Gram matrices of blocks of
    ``height`` rows of weight - share·copy [rows, columns], computed in float32 with one rounding: [blocks, count],
    float64. None if there is no native code for it.
    """
    if kernels is None or not _are_alike(weight, copy) or 1 not in weight.stride():
        return None
    if height > kernels.about.most_rows:
        return None
    found = torch.empty(-(-weight.shape[0] // height), count, dtype=torch.float64, device="cpu")
    given = _pair(weight, copy, share), *weight.shape, *weight.stride()
    kernels.gram_moments(*given, height, count, found.data_ptr(), torch.get_num_threads())
    return found


def gram_matrix(rows: Tensor) -> Tensor | None:
    """Return the Gram matrix of rows [n, columns] in float32, exactly symmetric, with ROUNDINGS + 1 at most on the
    way of a product into an entry. None if there is no native code for it.
    """
    if kernels is None or rows.dtype != torch.float32 or not is_plain(rows) or rows.stride(1) != 1:
        return None
    count, columns = rows.shape
    if count > 1 and rows.stride(0) == 0:  # blocks are told apart by where they begin
        return None
    found = torch.empty(count, count, dtype=torch.float32, device="cpu")
    threads = torch.get_num_threads()
    kernels.gram_matrix(rows.data_ptr(), count, columns, rows.stride(0), found.data_ptr(), threads)
    return found


# --- matrices of complex numbers ---

LANES = 1 if kernels is None else kernels.about.lanes
"""Matrices that are worked on at once."""

_STEPS = 24  # of Lanczos: within a few thousandths on matrices that training makes
_ROUGH_STEPS = 6
_SUSPECTS = 4  # blocks of LANES matrices


class Spectra:
    """What :class:`~..certify.single_precision.Spectra` asks for, of the Gram matrices on the smaller side that
    kernels have at frequencies.

    Args:
        wide: kernels [groups, rows, columns, positions] in float32, rows no more than columns, contiguous.
        cosines, sines: [positions, frequencies] in float32, contiguous, of a multiple of LANES frequencies.
    """

    def __init__(self, wide: Tensor, cosines: Tensor, sines: Tensor) -> None:
        groups, rows, columns, positions = wide.shape
        blocks = cosines.shape[1] // LANES
        self._size = groups * blocks, rows
        self._room = wide.new_empty(groups * blocks, rows * columns, 2, LANES)
        self._grams = wide.new_empty(groups * blocks, rows * (rows + 1) // 2, 2, LANES)
        self._open = torch.ones(groups * blocks, LANES, dtype=torch.uint8, device="cpu")
        sizes, waves = (groups, rows, columns, positions, blocks), (cosines.data_ptr(), sines.data_ptr())
        given = byref(KernelStack(wide.data_ptr(), *sizes, *waves))
        _code().spectra_grams(given, self._room.data_ptr(), self._grams.data_ptr(), torch.get_num_threads())

    def largest_trace(self) -> float:
        """Of the diagonals."""
        row = torch.arange(self._size[1], device="cpu")
        return float(self._grams[:, row * (row + 3) // 2, 0].to(torch.float64).sum(dim=1).amax())

    def guess(self) -> float:
        """By Lanczos, of LANES matrices at a time: by a few steps of all, and then by more of some."""
        wanted = self._open.amax(dim=1)
        if len(wanted) > _SUSPECTS:
            rough = self._guesses(wanted, _ROUGH_STEPS)
            wanted = torch.zeros_like(wanted).index_fill_(0, rough.topk(_SUSPECTS).indices, 1)
        return float(self._guesses(wanted, _STEPS).max())

    def _guesses(self, wanted: Tensor, steps: int) -> Tensor:
        """Return guesses for each block that is wanted, and 0 for the others."""
        blocks, rows = self._size
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(rows, 2, generator=generator, dtype=torch.float32, device="cpu")
        start /= torch.linalg.vector_norm(start)
        room = self._grams.new_empty(blocks, 3 * rows, 2, LANES)
        found = torch.empty(blocks, dtype=torch.float64, device="cpu")
        given = self._grams.data_ptr(), *self._size, wanted.data_ptr(), steps, start.data_ptr()
        _code().spectra_guess(*given, room.data_ptr(), found.data_ptr(), torch.get_num_threads())
        return found

    def prove(self, limit: float) -> float:
        """By Cholesky, of LANES matrices at a time."""
        traces = torch.empty(self._size[0], dtype=torch.float64, device="cpu")
        given = self._grams.data_ptr(), *self._size, limit, self._room.data_ptr()
        _code().spectra_prove(*given, self._open.data_ptr(), traces.data_ptr(), torch.get_num_threads())
        return float(traces.max())

    def are_proved(self) -> bool:
        """Whether no matrix is left."""
        return not bool(self._open.any())


def spectra(given: Tensor, cosines: Tensor, sines: Tensor) -> Spectra | None:
    """Return Gram matrices of what kernels [groups, rows, columns, positions] are at N frequencies, given by their
    cosines and sines [N, positions]. None if there is no native code for them.
    """
    if not is_eager() or kernels is None or given.dtype != torch.float32 or not is_plain(given):
        return None
    wide = given if given.shape[1] <= given.shape[2] else given.transpose(1, 2)
    missing = -len(cosines) % LANES
    cosines, sines = (torch.cat([waves, waves[-1:].expand(missing, -1)]).mT for waves in (cosines, sines))
    return Spectra(wide.contiguous(), cosines.contiguous(), sines.contiguous())


# --- examples ---


def row_norms(x: Tensor) -> Tensor | None:
    """Return the norm of each row of [B, n] in float32, [B] in float64, as :func:`~.example_norms` states it; None
    if there is no native code for it.
    """
    if not is_eager() or kernels is None or x.dtype != torch.float32 or x.dim() != 2 or not is_plain(x):
        return None
    if not x.is_contiguous():
        return None
    found = torch.empty(len(x), dtype=torch.float64, device="cpu")
    kernels.row_norms(x.data_ptr(), *x.shape, found.data_ptr(), torch.get_num_threads())
    return found


def sum_of_each(x: Tensor, axes: tuple[int, ...]) -> Tensor | None:
    """Return the sum in float64 over neighbouring axes, not 0, of each example of [B, …] in float32; None if there
    is no native code for it.
    """
    if not is_eager() or kernels is None or x.dtype != torch.float32 or not is_plain(x) or not x.is_contiguous():
        return None
    first, last = axes[0], axes[-1] + 1
    if axes != tuple(range(first, last)):
        return None
    found = torch.empty(x.shape[:first] + x.shape[last:], dtype=torch.float64, device="cpu")
    sizes = (math.prod(x.shape[:first]), math.prod(x.shape[first:last]), math.prod(x.shape[last:]))
    kernels.sum_of_each(x.data_ptr(), *sizes, found.data_ptr(), torch.get_num_threads())
    return found


def clipped(x: Tensor, limit: float, room: float) -> Tensor | None:
    """Return the examples of [B, …], each that is longer than ``limit`` scaled to ``room``, and zeros for one that
    is not finite: see :func:`~..nn.functional.clip_norm`. None if there is no native code for it.
    """
    if not is_eager() or kernels is None or x.dtype != torch.float32 or x.dim() < 2 or not is_plain(x):
        return None
    entries = math.prod(x.shape[1:])
    if flat(x) is None or (len(x) > 1 and x.stride(0) != entries):
        return None
    found = torch.empty_like(x)
    kernels.clip_rows(x.data_ptr(), len(x), entries, limit, room, found.data_ptr(), torch.get_num_threads())
    return found
