"""How the scattering transform is written: as Python of torch, and as operators of ONNX.

Fourier transforms are products with matrices, which any runtime computes alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import tau

import numpy as np
from numpy.typing import NDArray

from lipcompile.core.graph import Node
from lipcompile.core.record import Shape
from lipcompile.emitters.onnx.writer import Array, Emit, Writer
from lipcompile.emitters.torch.pieces import Expression
from lipcompile.ops.resample.write import padded
from lipcompile.ops.scattering.rules import Scattering2d, frequencies, lowpass, wavelet

# As Python


def _scattering(node: Node, operands: Sequence[str]) -> str:
    bank = node.attributes
    return f"functional.scattering2d({operands[0]}, {bank.scales}, angles={bank.angles}, order={bank.order})"


EXPRESSIONS: Mapping[str, Expression] = {"scattering2d": _scattering}

# As operators of ONNX

# Tensors of real and imaginary parts.
Complex = tuple[str, str]


@dataclass(slots=True)
class _Cascade:
    """Writes the steps of a cascade. A tensor of level l holds every 2^l-th position of padded images [..., h, w].

    sizes: of an image before it is padded.
    centred: the middle of the outputs is that of the image.
    """

    writer: Writer
    bank: Scattering2d
    sizes: Shape
    centred: bool
    _waves: dict[int, Complex] = field(default_factory=dict)

    def coefficients(self, image: str, lead: Shape) -> Iterator[str]:
        """Yield the coefficients of padded images [*lead, h, w], order after order."""
        mean = self._averaged(image, 0)
        yield self.writer.reshape(mean, (*lead, 1, *self._grid(self.bank.scales, border=True)))
        spectrum, later = self._spectrum(image, 0), []
        for scale in range(self.bank.scales):
            moduli = self._moduli(spectrum, 0, scale, lead)
            yield self._averaged(moduli, scale)
            if self.bank.order == 2 and scale + 1 < self.bank.scales:
                later.append(self._second(self._spectrum(moduli, scale), scale, (*lead, self.bank.angles)))
        yield from later

    def _second(self, spectrum: Complex, scale: int, first: Shape) -> str:
        """Return what wavelets of larger scales leave of moduli [*first, h, w], by angle of the first."""
        found = []
        for after in range(scale + 1, self.bank.scales):
            found.append(self._averaged(self._moduli(spectrum, scale, after, first), after))
        joined = found[0] if len(found) == 1 else self.writer.op("Concat", *found, axis=len(first) + 1)
        count = self.bank.angles**2 * len(found)
        shape = (*first[:-1], count, *self._grid(self.bank.scales, border=True))
        return self.writer.reshape(joined, shape)

    def _grid(self, level: int, *, border: bool = False) -> Shape:
        return tuple((self.bank.padded(size) >> level) - 2 * border for size in self.sizes)

    # Transforms

    def _spectrum(self, u: str, level: int) -> Complex:
        """The Fourier transform of a real tensor: rows, then columns."""
        (cosine, sine), (down_cosine, down_sine) = (self._wave(n) for n in reversed(self._grid(level)))
        real, imaginary = self.writer.op("MatMul", u, cosine), self.writer.op("MatMul", u, sine)
        return self._turned((real, self.writer.op("Neg", imaginary)), (down_cosine, down_sine), -1)

    def _turned(self, z: Complex, wave: Complex, sign: int) -> Complex:
        """e^{sign·i·θ} times z, over columns."""
        (real, imaginary), (cosine, sine) = z, wave
        op = self.writer.op
        first, second = op("MatMul", cosine, real), op("MatMul", sine, imaginary)
        third, fourth = op("MatMul", cosine, imaginary), op("MatMul", sine, real)
        if sign < 0:
            return op("Add", first, second), op("Sub", third, fourth)
        return op("Sub", first, second), op("Add", third, fourth)

    def _inverse(self, z: Complex, level: int) -> Complex:
        """The inverse transform, but for the division by the number of positions."""
        across, down = (self._wave(n) for n in reversed(self._grid(level)))
        (real, imaginary), (cosine, sine), op = z, across, self.writer.op
        rows = (
            op("Sub", op("MatMul", real, cosine), op("MatMul", imaginary, sine)),
            op("Add", op("MatMul", imaginary, cosine), op("MatMul", real, sine)),
        )
        return self._turned(rows, down, 1)

    def _wave(self, n: int) -> Complex:
        """Cosines and sines of all products of a position and a frequency, [n, n]."""
        if n not in self._waves:
            angles = tau / n * (np.outer(np.arange(n), np.arange(n)) % n)
            cosine, sine = (self.writer.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
            self._waves[n] = (cosine, sine)
        return self._waves[n]

    # Filters

    def _filtered(self, z: Complex, response: Array, level: int, to: int, lead: Shape) -> Complex:
        """Filter a spectrum [*lead, h, w], and keep every 2^(to - level)-th position: frequencies fold up."""
        step, (rows, columns) = 2 ** (to - level), self._grid(to)
        gain = self.writer.constant((response / (step**2 * rows * columns)).astype(np.float32))
        filtered = (self.writer.op("Mul", part, gain) for part in z)
        real, imaginary = (self._folded(part, lead, (step, rows, step, columns)) for part in filtered)
        return real, imaginary

    def _folded(self, part: str, lead: Shape, blocks: Shape) -> str:
        if blocks[0] == 1:
            return part
        apart, count = self.writer.reshape(part, (*lead, *blocks)), len(lead)
        return self.writer.reduce("ReduceSum", apart, (count, count + 2), keep=False)

    def _moduli(self, z: Complex, level: int, scale: int, lead: Shape) -> str:
        """|ψ * u| for every angle, [*lead, L, h, w]."""
        at = frequencies(self.bank, self.sizes, level)
        bank = np.stack([wavelet(self.bank, at, scale, angle) for angle in range(self.bank.angles)])
        real, imaginary = (self.writer.reshape(part, (*lead, 1, *self._grid(level))) for part in z)
        folded = self._filtered((real, imaginary), bank, level, scale, (*lead, self.bank.angles))
        squares = [self.writer.op("Mul", part, part) for part in self._inverse(folded, scale)]
        return self.writer.op("Sqrt", self.writer.op("Add", *squares))

    def _averaged(self, u: str, level: int) -> str:
        """φ * u at every 2^J-th position, without the border: columns, then rows."""
        made = (means(self.bank, size, level, centred=self.centred) for size in self.sizes)
        down, along = (matrix.astype(np.float32) for matrix in made)
        columns = self.writer.op("MatMul", u, self.writer.constant(along.T))
        return self.writer.op("MatMul", self.writer.constant(down), columns)


def means(bank: Scattering2d, size: int, level: int, *, centred: bool) -> Array:
    """Return what φ makes of an axis that holds every 2^level-th position, [outputs, positions]."""
    zero, (_, at) = np.zeros((1, 1)), frequencies(bank, (size, size), level)
    response = lowpass(bank, (zero, at)) / np.sqrt(lowpass(bank, (zero, zero)))
    step, padded_size = 2**bank.scales, bank.padded(size)
    outputs = np.arange(step, padded_size - step, step)
    if centred:
        outputs = outputs - outputs.mean() + bank.padding(size)[0] + (size - 1) / 2
    away = outputs[:, None] - np.arange(0, padded_size, 2**level)
    found: Array = (response * np.cos(at * away[..., None])).mean(-1)
    return found


def mirrored(bank: Scattering2d) -> NDArray[np.int64]:
    """Return which coefficient of an image is that of its mirror image: angles θ become -θ."""
    turned = (2 * int(bank.angles / 2 - 1) - np.arange(bank.angles)) % bank.angles
    waves = np.arange(bank.scales * bank.angles).reshape(-1, bank.angles)[:, turned]
    blocks, start = [np.zeros(1, dtype=np.int64), 1 + waves.ravel()], 1 + waves.size
    for later in range(bank.scales - 1, 0, -1):
        pairs = np.arange(bank.angles**2 * later).reshape(bank.angles, later, bank.angles)
        blocks.append(start + pairs[turned][:, :, turned].ravel())
        start += pairs.size
    return np.concatenate(blocks)


def coefficients(
    writer: Writer, bank: Scattering2d, x: str, example: Shape, shape: Shape, *, centred: bool = False
) -> str:
    """Return the coefficients of images `example`, as examples of this shape."""
    channels, *sizes = example
    image = padded(writer, x, [bank.padding(size) for size in sizes], "reflect", 3)
    found = _Cascade(writer, bank, tuple(sizes), centred).coefficients(image, (channels,))
    return writer.reshape(writer.op("Concat", *found, axis=2), shape)


EMITTERS: Mapping[str, Emit] = {
    "scattering2d": lambda writer, node, x: coefficients(
        writer, node.attributes, x[0], node.site.inputs[0], node.shape
    )
}
