"""How the scattering transform is written: as Python of torch, and as operators of ONNX.

Fourier transforms are products with matrices, which any runtime computes alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import tau

import numpy as np

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
    """

    writer: Writer
    bank: Scattering2d
    sizes: Shape
    _waves: dict[int, Complex] = field(default_factory=dict)

    def coefficients(self, image: str, lead: Shape) -> Iterator[str]:
        """Yield the coefficients of padded images [*lead, h, w], order after order."""
        spectrum = self._spectrum(image, 0)
        yield self._averaged(spectrum, 0, (*lead, 1))
        later = []
        for scale in range(self.bank.scales):
            moduli = self._moduli(spectrum, 0, scale, lead)
            first = (*lead, self.bank.angles)
            again = self._spectrum(moduli, scale)
            yield self._averaged(again, scale, first)
            if self.bank.order == 2 and scale + 1 < self.bank.scales:
                later.append(self._second(again, scale, first))
        yield from later

    def _second(self, spectrum: Complex, scale: int, first: Shape) -> str:
        """Return what wavelets of larger scales leave of moduli [*first, h, w], by angle of the first."""
        found = []
        for after in range(scale + 1, self.bank.scales):
            moduli = self._moduli(spectrum, scale, after, first)
            found.append(self._averaged(self._spectrum(moduli, after), after, (*first, self.bank.angles)))
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

    def _averaged(self, z: Complex, level: int, lead: Shape) -> str:
        """φ * u at every 2^J-th position, without the border, [*lead, h, w]."""
        response = lowpass(self.bank, frequencies(self.bank, self.sizes, level))
        real, imaginary = (self.writer.reshape(part, (*lead, *self._grid(level))) for part in z)
        folded = self._filtered((real, imaginary), response, level, self.bank.scales, lead)
        whole, _ = self._inverse(folded, self.bank.scales)
        for axis, size in enumerate(self._grid(self.bank.scales), start=len(lead)):
            whole = self.writer.part(whole, axis, 1, size - 1)
        return whole


def coefficients(writer: Writer, bank: Scattering2d, x: str, example: Shape, shape: Shape) -> str:
    """Return the coefficients of images `example`, as examples of this shape."""
    channels, *sizes = example
    image = padded(writer, x, [bank.padding(size) for size in sizes], "reflect", 3)
    found = _Cascade(writer, bank, tuple(sizes)).coefficients(image, (channels,))
    return writer.reshape(writer.op("Concat", *found, axis=2), shape)


EMITTERS: Mapping[str, Emit] = {
    "scattering2d": lambda writer, node, x: coefficients(
        writer, node.attributes, x[0], node.site.inputs[0], node.shape
    )
}
