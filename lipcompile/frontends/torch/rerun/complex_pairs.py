"""Complex numbers of a trace become pairs of real ones: ONNX has none, and no op here takes them.

The trace is run once more with a pair of tensors in the place of each complex one, and traced again. A complex
parameter becomes a real one [..., 2] of the same name. Fourier transforms are products with constant matrices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Interpreter, Node
from torch.fx.traceback import preserve_node_meta
from torch.nn import Module, Parameter
from torch.nn.functional import conv1d
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

from lipcompile.diagnostics import Location
from lipcompile.frontends.onnx.node import traced_line
from lipcompile.frontends.torch.untraceable import untraceable

Given = dict[str, Any]
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}


@dataclass(frozen=True, slots=True)
class _Pair:
    """A complex tensor, or a complex number: its parts are tensors, or numbers."""

    real: Any
    imag: Any


def holds_complex(program: ExportedProgram) -> bool:
    """Whether a trace computes with complex numbers."""
    return any(_is_complex(node) or _name(node) == "stft" for node in program.graph.nodes)


def in_pairs(program: ExportedProgram, module: Module) -> Module:
    """Return a module that computes what the trace of another does, without complex numbers.

    It has the parameters and the arguments of that module.
    """
    twin = _InPairs(program, module)

    def forward(*args: Tensor, **kwargs: Tensor) -> Any:
        return twin.run(args, kwargs)

    forward.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
    twin.forward = forward
    return twin


class _InPairs(Module):
    def __init__(self, program: ExportedProgram, module: Module) -> None:
        super().__init__()
        self._nodes = _Run(program.graph_module)
        self._specs = program.graph_signature.input_specs
        self._spec = program.call_spec
        self._constants = program.constants
        for spec in self._specs:
            if spec.kind is InputKind.PARAMETER:
                _put(self, spec.target, _parameter(module.get_parameter(spec.target)))
            elif spec.kind is InputKind.BUFFER:
                _put(self, spec.target, _as_real(module.get_buffer(spec.target)))

    def run(self, args: Sequence[Tensor], kwargs: Mapping[str, Tensor]) -> Any:
        """Compute what the trace does."""
        names = self._spec.in_spec.children_specs[1].context
        given = iter([*args, *(kwargs[name] for name in names)])
        with preserve_node_meta():
            made = self._nodes.run(*(self._operand(spec, given) for spec in self._specs))
        return tree_unflatten(tree_map(_as_real, made), self._spec.out_spec)

    def _operand(self, spec: Any, given: Any) -> Any:
        """Return what an input of the trace is."""
        if spec.kind is InputKind.USER_INPUT:
            return next(given)
        kept = self._constants.get(spec.target)
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER):
            return _Pair(kept.real.clone(), kept.imag.clone()) if kept.is_complex() else kept
        home, _, name = spec.target.rpartition(".")
        found = getattr(self.get_submodule(home), name)
        return _Pair(found[..., 0], found[..., 1]) if self._nodes.is_complex[spec.arg.name] else found


def _put(module: Module, name: str, value: Tensor) -> None:
    """Store a parameter or a buffer under a qualified name."""
    home, _, last = name.rpartition(".")
    for part in filter(None, home.split(".")):
        if part not in module._modules:
            module.add_module(part, Module())
        module = module.get_submodule(part)
    if isinstance(value, Parameter):
        module.register_parameter(last, value)
    else:
        module.register_buffer(last, value)


def _parameter(found: Parameter) -> Parameter:
    if not found.is_complex():
        return found
    return Parameter(torch.view_as_real(found.detach()), requires_grad=found.requires_grad)


def _as_real(found: Any) -> Any:
    """Return a complex tensor as a real one [..., 2], anything else as it is."""
    if isinstance(found, _Pair):
        return torch.stack([found.real, found.imag], -1)
    return torch.view_as_real(found) if isinstance(found, Tensor) and found.is_complex() else found


def _is_complex(node: Node) -> bool:
    """Whether a node puts out complex numbers."""
    return any(isinstance(leaf, Tensor) and leaf.is_complex() for leaf in tree_leaves(node.meta.get("val")))


def _name(node: Node) -> str:
    """Return the name of an operator without its overload, empty for anything else."""
    return node.target._schema.name.rpartition(":")[2] if isinstance(node.target, OpOverload) else ""


class _Run(Interpreter):
    """Runs the nodes of a trace; what reads or puts out complex numbers is one of the functions below."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.is_complex = {node.name: _is_complex(node) for node in module.graph.nodes}

    def run_node(self, n: Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if "wrap_with_set_grad_enabled" in str(n.target):
            enabled, inner, *operands = args
            with torch.set_grad_enabled(enabled):
                return _Run(inner).run(*operands)
        if _misses(n):
            message = "`forward` writes over a view of complex numbers that it may read again"
            raise untraceable("LIP110", message, "write over a copy: call .clone() before", _line(n))
        name, reads = _name(n), any(isinstance(leaf, _Pair | complex) for leaf in tree_leaves((args, kwargs)))
        if not name or not (reads or self.is_complex[n.name] or name == "stft"):
            return super().run_node(n)
        with self._set_current_node(n):
            given = arguments(n.target, args, kwargs)
            made = _computed(name, n.target, {key: _without_kind(value) for key, value in given.items()})
        if made is not None or name.startswith("_assert"):
            return made.real if isinstance(made, _Pair) and not self.is_complex[n.name] else made
        message = f"unsupported op {n.target} of complex numbers"
        help_line = "write it with real numbers, such as torch.view_as_real gives"
        raise untraceable("LIP100", message, help_line, _line(n))


def _line(node: Node) -> Location | None:
    return traced_line(str(node.meta.get("stack_trace")))


# Views of complex numbers that are new tensors here.
_COPIES = ("_conj", "adjoint", "conj", "mH", "view_as_real")


def _misses(node: Node) -> bool:
    """Whether a node writes over a view that is a copy here, of what something else reads as well."""
    written: Any = node.args[0] if node.args and _schema(node) and _schema(node).is_mutable else None
    while isinstance(written, Node) and _name(written) not in _COPIES and is_view(written):
        written = next(iter(written.args), None)
    if not isinstance(written, Node) or _name(written) not in _COPIES:
        return False
    viewed: Any = next(iter(written.args), None)
    return isinstance(viewed, Node) and (len(viewed.users) > 1 or viewed.op == "placeholder" or is_view(viewed))


def _schema(node: Any) -> Any:
    return getattr(getattr(node, "target", None), "_schema", None)


def is_view(node: Any) -> bool:
    """Whether a traced operation puts out its first operand, or a view of it."""
    returns: Any = getattr(_schema(node), "returns", ())
    return bool(returns) and returns[0].alias_info is not None


def arguments(called: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Given:
    """Return the arguments of a call of an operator by name, those that were left out among them."""
    formal = called._schema.arguments
    given = {one.name: one.default_value for one in formal if one.has_default_value()}
    return given | dict(zip((one.name for one in formal), args, strict=False)) | dict(kwargs)


def _without_kind(value: Any) -> Any:
    return _REAL.get(value, value) if isinstance(value, torch.dtype) else value


def _computed(name: str, op: Any, given: Given) -> Any:
    """Return what an operator makes of pairs, or a pair that it makes; None if nothing here computes it."""
    plain = name.removesuffix("_")
    if plain in _LINEAR or plain in _CHANGES:
        return _linear(op, given)
    if plain in _FACTORS:
        packet = getattr(torch.ops.aten, plain)
        made = _multilinear(getattr(packet, op._overloadname), given, _FACTORS[plain])
    elif plain in _FUNCTIONS or plain.startswith("fft_"):
        made = _FUNCTIONS[plain](given) if plain in _FUNCTIONS else _fourier(plain.removeprefix("fft_"), given)
    else:
        return None
    if plain == name:
        return made
    for own, other in zip(_parts(given["self"]), _parts(made), strict=True):
        own.copy_(other)
    return given["self"]


# Linear functions: of the real parts, and of the imaginary parts

# Arguments that hold numbers which are computed with; others are places, sizes and conditions.
_NUMBERS = ("self", "other", "tensors", "src", "source", "values", "value", "fill_value", "input")
_MOVES = """
    _unsafe_view alias cat chunk clone contiguous detach diagonal expand expand_as fft_fftshift fft_ifftshift
    flatten flip gather index index_select lift_fresh_copy mT movedim narrow numpy_T permute repeat
    repeat_interleave reshape roll select slice split split_with_sizes squeeze stack swapaxes swapdims t tile
    transpose unbind unflatten unsqueeze view view_as
"""
_SUMS = """
    add constant_pad_nd cumsum empty empty_like full full_like index_put masked_fill mean neg new_empty new_full
    new_zeros pad rsub scalar_tensor select_scatter slice_scatter sub sum tril triu where zeros zeros_like
"""
_LINEAR = frozenset((*_MOVES.split(), *_SUMS.split(), "resolve_conj", "resolve_neg"))
_CHANGES = ("zero", "fill", "copy")


def _linear(op: Any, given: Given) -> Any:
    if "shift" in str(op) and given["dim"] is None:
        message = "fftshift without axes moves examples to the places of others"
        raise untraceable("LIP108", message, "say along which axis of an example: dim=-1", None)
    parts = [
        op(**{key: _part(value, part) if key in _NUMBERS else value for key, value in given.items()})
        for part in ("real", "imag")
    ]
    if isinstance(parts[0], Tensor):
        return _Pair(*parts)
    return [_Pair(*pair) for pair in zip(*parts, strict=True)]


def _part(value: Any, part: str) -> Any:
    """Return one part of all numbers in an argument; the imaginary one of real numbers is 0."""
    return tree_map(lambda leaf: _parts(leaf)[part == "imag"], value)


def _parts(value: Any) -> tuple[Any, Any]:
    if isinstance(value, _Pair | complex):
        return value.real, value.imag
    if isinstance(value, Tensor):
        return value, torch.zeros_like(value)
    return value, 0 if isinstance(value, int | float) else value


# Products: Σ i^k of the function of all choices of parts

_FACTORS = {
    "bmm": ("self", "mat2"),
    "dot": ("self", "tensor"),
    "einsum": ("tensors",),
    "matmul": ("self", "other"),
    "mm": ("self", "mat2"),
    "mul": ("self", "other"),
    "mv": ("self", "vec"),
    "outer": ("self", "vec2"),
}


def _multilinear(op: Any, given: Given, names: Sequence[str]) -> _Pair:
    """Return the sum over all choices of a real or an imaginary part of each complex factor."""
    factors = [leaf for name in names for leaf in tree_leaves(given[name])]
    choices = [(0, 1) if isinstance(factor, _Pair | complex) else (0,) for factor in factors]
    sums: list[Any] = [None, None]
    for chosen in product(*choices):
        parts = [_parts(factor)[one] for one, factor in zip(chosen, factors, strict=True)]
        term, turns = op(**_replaced(given, names, iter(parts))), sum(chosen)
        term = -term if turns % 4 > 1 else term
        sums[turns % 2] = term if sums[turns % 2] is None else sums[turns % 2] + term
    return _Pair(*sums)


def _replaced(given: Given, names: Sequence[str], parts: Iterator[Any]) -> Given:
    """Return arguments with these parts in the place of all factors."""
    return given | {name: tree_map(lambda _: next(parts), given[name]) for name in names}


def _times(left: Any, right: Any) -> _Pair:
    return _multilinear(torch.ops.aten.mul.Tensor, {"self": left, "other": right}, ("self", "other"))


# Functions


def _conjugated(value: _Pair, *, turned: bool = False) -> _Pair:
    return _Pair(value.real.mT, -value.imag.mT) if turned else _Pair(value.real, -value.imag)


def _square(value: Any) -> Any:
    return value.real * value.real + value.imag * value.imag


def _absolute(value: _Pair) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(torch.stack([value.real, value.imag], -1), dim=-1)
    return found


def _angle(value: _Pair) -> Tensor:
    return torch.atan2(value.imag, value.real)


def _polar(radius: Any, angle: Any) -> _Pair:
    return _Pair(radius * torch.cos(angle), radius * torch.sin(angle))


def _tanh(value: _Pair) -> _Pair:
    """With t = tanh a, s = sin b and c = cos b: tanh(a + ib) = (t + i·s·c·(1 - t²))/(c² + t²·s²)."""
    t, s, c = torch.tanh(value.real), torch.sin(value.imag), torch.cos(value.imag)
    below = c * c + t * t * s * s
    return _Pair(t / below, s * c * (1 - t * t) / below)


def _reciprocal(value: Any) -> _Pair:
    square = _square(value)
    return _Pair(value.real / square, -value.imag / square)


def _quotient(given: Given) -> _Pair:
    value, other = given["self"], given["other"]
    if isinstance(other, _Pair | complex):
        return _times(_reciprocal(other), value)
    return _Pair(value.real / other, value.imag / other)


def _power(given: Given) -> _Pair | None:
    value, exponent = given["self"], given["exponent"]
    if not isinstance(exponent, int | float) or exponent != int(exponent) or not 1 <= abs(exponent) <= 8:
        return None
    made = value
    for _ in range(int(abs(exponent)) - 1):
        made = _times(made, value)
    return made if exponent > 0 else _reciprocal(made)


def _converted(given: Given) -> Any:
    """A change of the kind of numbers."""
    real, imag = _parts(given["self"])
    kind = given.get("dtype") or real.dtype
    return _Pair(real.to(kind), imag.to(kind))


_FUNCTIONS: Mapping[str, Callable[[Given], Any]] = {
    "_conj": lambda given: _conjugated(given["self"]),
    "_to_copy": _converted,
    "abs": lambda given: _absolute(given["self"]),
    "adjoint": lambda given: _conjugated(given["self"], turned=True),
    "angle": lambda given: _angle(given["self"]),
    "complex": lambda given: _Pair(given["real"], given["imag"]),
    "conj": lambda given: _conjugated(given["self"]),
    "conj_physical": lambda given: _conjugated(given["self"]),
    "div": _quotient,
    "exp": lambda given: _polar(torch.exp(given["self"].real), given["self"].imag),
    "imag": lambda given: given["self"].imag,
    "mH": lambda given: _conjugated(given["self"], turned=True),
    "log": lambda given: _Pair(torch.log(_absolute(given["self"])), _angle(given["self"])),
    "polar": lambda given: _polar(given["abs"], given["angle"]),
    "pow": _power,
    "real": lambda given: given["self"].real,
    "reciprocal": lambda given: _reciprocal(given["self"]),
    "square": lambda given: _times(given["self"], given["self"]),
    "stft": lambda given: _of_windows(given),
    "sym_size": lambda given: given["self"].real.shape[given["dim"]],
    "tanh": lambda given: _tanh(given["self"]),
    "to": _converted,
    "view_as_complex": lambda given: _Pair(given["self"][..., 0], given["self"][..., 1]),
    "view_as_real": lambda given: _as_real(given["self"]),
}


# Fourier transforms


def _fourier(name: str, given: Given) -> Any:
    """Transform complex or real numbers along one axis, two, or several; None for another function."""
    kind, value, norm = name.rstrip("2n"), given["self"], given["norm"]
    if kind not in ("fft", "ifft", "rfft", "irfft"):
        return None
    (last, size), others, inverse = *_axes(name, given), kind.startswith("i")
    if kind == "irfft":
        for axis, length in others:
            value = _spectrum(value, axis, length, norm, inverse=True)
        return _from_half(value, last, size, norm)
    value = _spectrum(value, last, size, norm, inverse=inverse, half=kind == "rfft")
    for axis, length in others:
        value = _spectrum(value, axis, length, norm, inverse=inverse)
    return value


def _axes(name: str, given: Given) -> tuple[tuple[int, int | None], list[tuple[int, int | None]]]:
    """Return the last axis of a transform and its size, None for the one that it has, and the others."""
    rank = _real(given["self"]).dim()
    dims, sizes = (given["dim"], given["s"]) if name[-1] in "2n" else ([given["dim"]], [given["n"]])
    if dims is None:
        dims = range(-(rank if sizes is None else len(sizes)), 0)
    sizes = [None] * len(dims) if sizes is None else [None if size == -1 else size for size in sizes]
    *others, last = [(axis % rank, size) for axis, size in zip(dims, sizes, strict=True)]
    return last, others


def _real(value: Any) -> Tensor:
    found: Tensor = value.real if isinstance(value, _Pair) else value
    return found


def _spectrum(
    value: Any, axis: int, size: int | None, norm: str | None, *, inverse: bool, half: bool = False
) -> _Pair:
    """Σ_j x_j·exp(∓2πi·jk/n) for k = 0, …, n - 1, or up to ⌊n/2⌋."""
    held = _real(value).shape[axis]
    n = size or held
    waves = _waves(held, n, n // 2 + 1 if half else n, inverse=inverse) * _scale(n, norm, inverse=inverse)
    return _multiplied(value, axis, waves)


def _from_half(value: Any, axis: int, size: int | None, norm: str | None) -> Any:
    """Real numbers from one half of their transform: all but its ends count for both halves."""
    held = _real(value).shape[axis]
    n = size or 2 * (held - 1)
    waves = _waves(held, n, n, inverse=True) * _scale(n, norm, inverse=True)
    waves[n // 2 + 1 :] = 0
    waves[1 : (n + 1) // 2] *= 2
    return _multiplied(value, axis, waves, whole=False).real


def _waves(held: int, n: int, count: int, *, inverse: bool) -> NDArray[np.complex128]:
    """Return exp(∓2πi·jk/n) [held, count]; entries from n on are left out."""
    if not isinstance(held, int):
        message = "a Fourier transform is along the batch axis: it mixes examples"
        raise untraceable("LIP108", message, "say along which axis of an example: dim=-1", None)
    if not isinstance(n, int):
        message = "the length of a Fourier transform is computed from the batch size"
        raise untraceable("LIP108", message, "give it a fixed length", None)
    turns = np.outer(np.arange(held), np.arange(count)) % n
    waves: NDArray[np.complex128] = np.exp((2j if inverse else -2j) * np.pi * turns / n)
    waves.imag[2 * turns % n == 0] = 0  # of whole and half turns, which rounding would miss
    waves[n:] = 0
    return waves


def _scale(n: int, norm: str | None, *, inverse: bool) -> float:
    if norm == "ortho":
        return float(n**-0.5)
    return 1 / n if inverse == (norm in (None, "backward")) else 1.0


def _multiplied(value: Any, axis: int, matrix: NDArray[Any], *, whole: bool = True) -> _Pair:
    """Multiply along an axis by a constant matrix [old, new]; without `whole`, only the real part of it."""
    rank, kind = _real(value).dim(), _real(value).dtype
    cosine, sine = (torch.tensor(part, dtype=kind) for part in (matrix.real.copy(), matrix.imag.copy()))

    def along(part: Tensor, constant: Tensor) -> Tensor:
        return torch.matmul(part.movedim(axis, rank - 1), constant).movedim(rank - 1, axis)

    if not isinstance(value, _Pair):
        return _Pair(along(value, cosine), along(value, sine))
    real = along(value.real, cosine) - along(value.imag, sine)
    return _Pair(real, along(value.real, sine) + along(value.imag, cosine) if whole else None)


def _of_windows(given: Given) -> Any:
    """The transforms of windows of a signal [..., length]: a convolution with constant waves, times the window."""
    signal, n = given["self"], given["n_fft"]
    step, width, window = given["hop_length"] or n // 4, given["win_length"] or n, given["window"]
    if isinstance(signal, _Pair) or given.get("center") or given.get("onesided") is False:
        return None
    waves = _waves(n, n, n // 2 + 1, inverse=False) * (n**-0.5 if given["normalized"] else 1)
    window = torch.ones(width, dtype=signal.dtype) if window is None else window
    before = (n - width) // 2
    window = torch.nn.functional.pad(window, (before, n - width - before)) if width < n else window
    parts = []
    for part in (waves.real.copy(), waves.imag.copy()):
        kernels = (torch.tensor(part.T.copy(), dtype=signal.dtype) * window).unsqueeze(1)
        rows = signal.reshape(-1, 1, signal.shape[-1]) if signal.dim() == 1 else signal.unsqueeze(1)
        made = conv1d(rows, kernels, stride=step)
        parts.append(made.squeeze(0) if signal.dim() == 1 else made)
    return _Pair(*parts) if given["return_complex"] else torch.stack(parts, -1)
