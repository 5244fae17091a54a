"""Certified norms of stored weights, in numpy: every number that leaves this file is an upper bound of a real one.

Eigenvalue solvers only guess where the largest eigenvalue lies; a completed Cholesky factorisation proves it. So
a bad guess costs tightness, never truth.

Notation: u = 2⁻⁵³, γ_k = k·u/(1 - k·u) (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., ch. 3).
`_gamma` holds a factor of eight to spare: it covers complex arithmetic, blocked summation, underflow of entries
far below the largest one, and the rounding of the bound itself. Weights are first divided by a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lipcompile.numbers.rounding import UNIT, UP, round_up
from lipcompile.ops.counting import Window, copies, reads, taps

Array = NDArray[Any]
_PHASE_ERROR = 128 * UNIT  # of cos and sin of at most three summed fractions of a turn
_SLACKS = (1e-9, 1e-7, 1e-5, 1e-3)  # distances above the guess at which a proof is tried
_EXACT_SIZE = 384  # up to here the dense eigenvalue solver makes the guess
_FREQUENCY_FLOPS = 2e9  # above this, a convolution is bounded by its reshaped kernels alone
_DIGITS = 9
_LOOKS, _TINY = 12, 1e-300  # steps of the estimate, and the least divisor in one


class Measured(NamedTuple):
    """An upper bound of an operator norm, and the description of the map that gave it, the tightest of several."""

    bound: Fraction
    method: str


def euclidean_norm(entries: Array) -> Fraction:
    """Return an upper bound of the root of the sum of squares of all entries; raises ValueError if not finite.

    A sum of n squares in float64, in any order, is at least the true one divided by 1 + γ_{n+2}.
    """
    scaled, scale = _normalised(entries)
    return _rounded_up(_frobenius(scaled), scale)


def spectral_norm(matrix: Array) -> Measured:
    """Return an upper bound of the largest singular value of a matrix; raises ValueError if not finite."""
    scaled, scale = _normalised(matrix)
    return Measured(_rounded_up(_stack_norm(scaled[None]), scale), "matrix")


def spectral_estimate(matrix: Array) -> Fraction:
    """Return about the largest singular value of a matrix: no bound of it, and far cheaper than one.

    Raises ValueError if an entry is not finite.
    """
    scaled, scale = _normalised(matrix)
    return Fraction(_stack_estimate(scaled[None])) * Fraction(2) ** scale


def convolution_estimate(kernel: Array, windows: Sequence[Window], groups: int = 1) -> Fraction:
    """Return about the bound of `convolution_norm`: no bound, and far cheaper than one; raises as that does."""
    scaled, scale = _normalised(kernel)
    return Fraction(_least(scaled, tuple(windows), groups, _stack_estimate)[0]) * Fraction(2) ** scale


def convolution_norm(kernel: Array, windows: Sequence[Window], groups: int = 1) -> Measured:
    """Return an upper bound of the operator norm of the convolution with kernel [F, C/groups, *k].

    The smallest of three bounds, each the largest over groups, as the map is block diagonal in them:

    1. √m·‖reshape(K, F x Ck)‖: the map is the reshaped kernel after the gathering of patches, which copies each
       entry at most m = `reads` times.
    2. √(r·v)·‖reshape(K, C x Fk)‖: the map is a sum over taps of products of the reshaped kernel's columns with
       shifts; `taps` counts r·v (ops/counting.py).
    3. The bound over frequencies: see `_frequency_maps`. With padding other than zeros, it is that of the map
       without padding on the padded input, times the norm of the padding: the root of `copies` an axis.

    Raises ValueError if an entry is not finite, or if kernel and windows do not belong together.
    """
    scaled, scale = _normalised(kernel)
    smallest, method = _least(scaled, tuple(windows), groups, _stack_norm)
    return Measured(_rounded_up(smallest, scale), method)


# Returns the largest norm among the maps [N, rows, columns], each of which may be off by an error; or about that.
_Largest = Callable[[Array, float], float]


def _least(kernel: Array, windows: tuple[Window, ...], groups: int, largest: _Largest) -> tuple[float, str]:
    """Return the smallest of the bounds of `convolution_norm`, and its map, by a way to find largest norms."""
    if kernel.shape[2:] != tuple(window.kernel for window in windows) or kernel.shape[0] % groups:
        raise ValueError(f"a kernel of shape {kernel.shape} does not fit {windows} and {groups} groups")
    grouped = kernel.reshape(groups, kernel.shape[0] // groups, kernel.shape[1], -1)
    by_filter = grouped.reshape(groups, grouped.shape[1], -1)
    by_channel = grouped.swapaxes(1, 2).reshape(groups, grouped.shape[2], -1)
    bounds = [
        (math.sqrt(reads(windows)) * largest(by_filter, 0.0) * UP, "kernel, F × C·k"),
        (math.sqrt(taps(windows)) * largest(by_channel, 0.0) * UP, "kernel, C × F·k"),
    ]
    inner, repeats = _unpadded(windows)
    if _frequencies_pay(grouped.shape, inner):
        maps, error = _frequency_maps(kernel, inner, groups)
        bounds.append((math.sqrt(repeats) * largest(maps, error) * UP, "frequencies"))
    return min(bounds)


def _gamma(terms: int) -> float:
    return 8 * (terms + 2) * UNIT


def _normalised(entries: Array) -> tuple[Array, int]:
    """Return the entries in float64 divided by 2^e, the largest in [1/2, 1), and e."""
    exact = entries.astype(np.float64)
    largest = float(np.abs(exact).max(initial=0.0))
    if not math.isfinite(largest):
        raise ValueError("the entries are not finite, so they have no norm")
    exponent = math.frexp(largest)[1]
    return np.ldexp(exact, -exponent), exponent


def _rounded_up(bound: float, exponent: int) -> Fraction:
    """Return bound·2^exponent, rounded up to a few digits so that people can read it."""
    numerator, denominator = bound.as_integer_ratio()
    exact = Fraction(numerator << max(exponent, 0), denominator << max(-exponent, 0))
    return round_up(exact, _DIGITS)


def _frobenius(entries: Array) -> float:
    """‖entries‖_F, rounded up."""
    return float(np.linalg.norm(entries.reshape(-1))) * (1 + _gamma(entries.size)) * UP


def _stack_estimate(maps: Array, _: float = 0.0) -> float:
    """Return about the largest ‖map‖ over maps [N, rows, columns]: a Ritz value, from below but for rounding.

    Lanczos' iteration, without the threads of BLAS: on many small matrices these cost more than the arithmetic.
    """
    if not maps.size:
        return 0.0
    conjugate = maps.conj()
    vector: Array = np.random.default_rng(0).standard_normal((1, maps.shape[-1]))
    vector = np.repeat(vector / np.linalg.norm(vector), len(maps), axis=0).astype(maps.dtype)
    previous, side = np.zeros_like(vector), np.zeros((len(maps), 1))
    tridiagonal = np.zeros((len(maps), _LOOKS, _LOOKS))
    for step in range(_LOOKS):
        image = np.einsum("nij,nj->ni", maps, vector)
        back = np.einsum("nij,ni->nj", conjugate, image) - side * previous
        tridiagonal[:, step, step] = diagonal = np.linalg.norm(image, axis=-1) ** 2
        back -= diagonal[:, None] * vector
        side = np.linalg.norm(back, axis=-1, keepdims=True)
        if step + 1 < _LOOKS:
            tridiagonal[:, step + 1, step] = side[:, 0]  # the lower triangle is read
        previous, vector = vector, back / np.maximum(side, _TINY)
    return math.sqrt(max(float(np.linalg.eigvalsh(tridiagonal)[:, -1].max()), 0.0))


def _grams(maps: Array) -> Array:
    """Return the Gram matrices of maps [N, rows, columns] on the smaller side."""
    adjoint = maps.conj().swapaxes(-1, -2)
    rows, columns = maps.shape[-2:]
    return np.ascontiguousarray(maps @ adjoint if rows <= columns else adjoint @ maps)


def _stack_norm(maps: Array, error: float = 0.0) -> float:
    """Return an upper bound of the largest ‖map + E‖ over maps [N, rows, columns] and ‖E‖ <= `error`.

    ‖A‖² = λ_max(A Aᴴ). The computed Gram matrix differs from the exact one by at most γ_k|A||A|ᴴ entry by entry,
    k the length of the products, hence by γ_k‖A‖_F² in norm.
    """
    largest = max((_frobenius(a) for a in maps), default=0.0)
    if largest == 0.0 or not maps.size:
        return error
    eigenvalue = _largest_eigenvalue(_grams(maps)) + _gamma(max(maps.shape[-2:])) * largest**2
    return (min(math.sqrt(eigenvalue), largest) + error) * UP


def _largest_eigenvalue(grams: Array) -> float:
    """Return a proved upper bound of the eigenvalues of Hermitian matrices [N, n, n], near a good guess."""
    sizes = [_frobenius(gram) for gram in grams]
    guess = _guess(grams)
    for slack in _SLACKS if grams.shape[-1] <= _EXACT_SIZE else _SLACKS[2:]:
        limit = guess * (1 + slack)
        suspects = [index for index, size in enumerate(sizes) if size > limit]
        if _certified(grams[suspects], limit):
            return limit
    return max(sizes)


def _certified(grams: Array, limit: float) -> bool:
    """Whether the eigenvalues of Hermitian matrices (their lower triangles) are proved to be at most `limit`.

    If the Cholesky factorisation of A = τI - G runs to its end, then A + E = RᴴR with ‖E‖ <= γ_{n+1}·tr(A) up to
    a factor near 1 (Higham, theorem 10.3; Rump, BIT 46, 2006), so λ_min(A) >= -γ_{n+1}·n·τ; rounding the diagonal
    of A adds 2uτ. τ is chosen so that all of it stays below the limit.
    """
    if not len(grams):
        return True
    size = grams.shape[-1]
    shift = limit / (1 + size * _gamma(size))
    try:
        factor = np.linalg.cholesky(shift * np.eye(size) - grams)
    except np.linalg.LinAlgError:
        return False
    return bool(np.isfinite(factor).all())


def _guess(grams: Array) -> float:
    """Guess the largest eigenvalue; nothing is guaranteed."""
    if grams.shape[-1] <= _EXACT_SIZE:
        return float(np.linalg.eigvalsh(grams)[:, -1].max())
    return max(_subspace_guess(gram) for gram in grams)


def _subspace_guess(gram: Array) -> float:
    """Guess by iterating a small subspace: cheaper than a dense solver, and slightly low."""
    basis = np.random.default_rng(0).standard_normal((gram.shape[0], 8))
    for _ in range(24):
        basis = np.linalg.qr(gram @ basis)[0]
    return float(np.linalg.eigvalsh(basis.conj().T @ gram @ basis)[-1])


# Frequencies


def _unpadded(windows: Sequence[Window]) -> tuple[tuple[Window, ...], int]:
    """Return windows that zeros pad, if anything does, and ‖padding‖² of what was padded otherwise."""
    inner = tuple(
        w if w.mode == "zeros" else replace(w, size=w.size + sum(w.padding), padding=(0, 0), mode="zeros")
        for w in windows
    )
    return inner, prod(copies(w.size, w.padding, w.mode) for w in windows)


def _polyphase(window: Window) -> tuple[int, int]:
    """Return (A, N): taps of the stride-one form of a window, and the size of a circular grid without aliasing.

    Write the padded position of an input entry as s·q + φ and of a tap as d·t = s·a + φ. The output at o is
    Σ_φ Σ_a K_φ[a]·x_φ[o + a]: stride one, s times as many channels, A = ⌊d(k-1)/s⌋ + 1 taps. Let O outputs read Q
    positions q. On a circular grid of N = min(O, Q) + A - 1 nothing aliases: if O is the smaller, the outputs read
    at most O + A - 1 consecutive positions; else the inputs reach at most Q + A - 1 consecutive outputs.
    """
    low, stride = window.padding[0], window.stride
    positions = (low + window.size - 1) // stride - low // stride + 1
    count = window.dilation * (window.kernel - 1) // stride + 1
    return count, min(window.outputs, positions) + count - 1


def _frequencies_pay(grouped: tuple[int, ...], windows: Sequence[Window]) -> bool:
    """Whether the bound over frequencies is affordable."""
    groups, filters, channels, _ = grouped
    channels *= prod(window.stride for window in windows)
    grid = prod(_polyphase(window)[1] for window in windows)
    taps = prod(window.kernel for window in windows)
    flops = 16.0 * grid * groups * filters * channels * min(filters, channels)
    largest = 16.0 * grid * max(groups * filters * channels, taps)  # bytes: of the matrices, of the cosines
    return flops <= _FREQUENCY_FLOPS and largest <= _FREQUENCY_FLOPS / 8


def _frequency_maps(kernel: Array, windows: Sequence[Window], groups: int) -> tuple[Array, float]:
    """Return the matrices K̂(ω) over the frequencies of the grid of `_polyphase`, and how far each may be off.

    The convolution is (restriction) ∘ (circulant) ∘ (embedding) with the outer two of norm <= 1, and the norm of
    a circulant is the largest among the matrices K̂(ω) [F, C·Πs] of its Fourier transform. The transform is a plain
    product with cosines and sines: each entry is off by at most ε·Σ_t|K_t|, ε = γ_taps + phase error, so each
    matrix by ε·√taps·‖K‖_F. K is real, so half of the frequencies of the last axis suffice.
    """
    phases = prod(window.stride for window in windows)
    form, used = _stride_one(kernel, windows)
    angles = _angles([_polyphase(window) for window in windows], used)
    transform = (np.cos(angles) + 1j * np.sin(angles)) @ form.T
    maps = transform.reshape(len(angles) * groups, kernel.shape[0] // groups, kernel.shape[1] * phases)
    error = math.sqrt(form.shape[1]) * _frobenius(kernel) * (_gamma(form.shape[1]) + _PHASE_ERROR)
    return maps, error


def _stride_one(kernel: Array, windows: Sequence[Window]) -> tuple[Array, Array]:
    """Return the kernel of the stride-one form, [F·C·phases, taps], and where these taps lie, [axes, taps].

    Dilation leaves most positions of the form without a tap; they are left out.
    """
    places = sorted(set(product(*({w.dilation * t // w.stride for t in range(w.kernel)} for w in windows))))
    columns = {place: column for column, place in enumerate(places)}
    form: Array = np.zeros((*kernel.shape[:2], prod(window.stride for window in windows), len(places)))
    for tap in product(*(range(window.kernel) for window in windows)):
        positions = [divmod(window.dilation * t, window.stride) for window, t in zip(windows, tap, strict=True)]
        phase = 0
        for window, (_, remainder) in zip(windows, positions, strict=True):
            phase = phase * window.stride + remainder
        source: Any = (..., *tap)
        form[..., phase, columns[tuple(a for a, _ in positions)]] = kernel[source]
    return form.reshape(-1, len(places)), np.array(places).T


def _angles(axes: Sequence[tuple[int, int]], places: Array) -> Array:
    """Return 2π·Σ_axis ω·a/N for taps at `places`, [frequencies, taps], reduced modulo one in integers."""
    total: Array = np.zeros((1, places.shape[1]))
    for index, ((_, grid), place) in enumerate(zip(axes, places, strict=True)):
        frequencies = grid // 2 + 1 if index == len(axes) - 1 else grid
        turns = np.outer(np.arange(frequencies), place) % grid / grid
        total = (total[:, None, :] + turns[None, :, :]).reshape(-1, places.shape[1])
    return 2 * np.pi * total
