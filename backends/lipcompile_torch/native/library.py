"""The kernels as functions of Python, and the structures that they are given; see `kernels/`.

Addresses are integers, and nothing here asks what lies there: callers do.
"""

from __future__ import annotations

from ctypes import CDLL, CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_size_t, c_void_p
from importlib.util import find_spec
from typing import Any

_KINDS = dict(zip("pnifds", (c_void_p, c_size_t, c_int, c_float, c_double, c_char_p), strict=True))


def _fields(described: str) -> list[tuple[str, Any]]:
    """Return the fields of a structure, each given as `kind name`."""
    return [(name, _KINDS[kind]) for kind, name in (field.split() for field in described.split(","))]


class NoisyPart(Structure):
    """`noisy_part` of kernels.h."""

    _fields_ = _fields("p entries, n count, i is_double, d scale")


class WordSource(Structure):
    """`word_source` of kernels.h."""

    _fields_ = _fields("p words, s key_and_counter, n index")


class FingerprintKey(Structure):
    """`fingerprint_key` of kernels.h."""

    _fields_ = _fields("p inner, p outer, n block")


class Compared(Structure):
    """`compared` of kernels.h."""

    _fields_ = _fields("p weight, p copy, i copy_is_half, f share")


class KernelStack(Structure):
    """`kernel_stack` of kernels.h."""

    _fields_ = _fields("p entries, n groups, n rows, n columns, n positions, n blocks, p cosines, p sines")


class Operand(Structure):
    """`operand` of outer_products.h."""

    _fields_ = _fields(
        "p entries, n extent, n example_stride, n channel_stride, n position_stride, n positions, n source_step, "
        "p spans, n span_count, p places, n room"
    )


class GradientPlan(Structure):
    """`gradient_plan` of example_gradients.h."""

    _fields_ = [
        *(("lanes", Operand), ("entries", Operand)),
        *_fields("n lanes_step, n entries_step, n entry_step, n width, i by_lane, p segments, n segment_count"),
        *_fields("p units, n unit_count, p rows, n row_count, n row_width"),
    ]


class GradientScales(Structure):
    """`gradient_scales` of example_gradients.h."""

    _fields_ = _fields("p factors, p norms, p beside, d limit, d room, d regulariser, i are_given")


class _Kernel(Structure):
    """`kernel` of table.c."""

    _fields_ = _fields("s name, p code, s kinds")

    def function(self) -> Any:
        """It, to be called without the lock of the interpreter."""
        arguments, _, result = self.kinds.decode().partition(">")
        return CFUNCTYPE(_KINDS.get(result), *map(_KINDS.__getitem__, arguments))(self.code)


class _Description(Structure):
    """`description` of table.c."""

    _fields_ = [
        *_fields("i has_aes, i has_wide_aes, i most_rows, i lanes, i tile_vectors, i tile_entries"),
        *_fields("s compiler, s instructions"),
        *(("kernels", POINTER(_Kernel)), ("kernel_count", c_size_t)),
    ]


class Kernels:
    """The kernels of a library, each an attribute.

    Attributes:
        about: `has_aes`, `has_wide_aes`, `most_rows`, `lanes`, `tile_vectors`, `tile_entries`, `compiler` and
            `instructions`, the last two as bytes.

    Raises:
        OSError: the library does not load, or this processor cannot run it.
        AttributeError: it is another one.
    """

    def __init__(self, path: str) -> None:
        describe = CDLL(path).lipcompile_kernels
        describe.restype = POINTER(_Description)
        found = describe()
        if not found:
            raise OSError("this processor has no AVX2, or no fused multiplication and addition")
        self.about = found.contents
        for kernel in self.about.kernels[: self.about.kernel_count]:
            setattr(self, kernel.name.decode(), kernel.function())

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def load() -> tuple[Kernels | None, str | None]:
    """Return the kernels that were built with this package; None, and why there are none."""
    place = find_spec("._kernels", __package__)
    if place is None or place.origin is None:
        return None, (
            "not built, because the C compiler is missing or failed: `pip install -v --force-reinstall` shows "
            "the error"
        )
    try:
        return Kernels(place.origin), None
    except (OSError, AttributeError) as error:
        return None, f"not loaded: {error}"
