"""The way back: which entries of a torch module's weights the entries of an imported model were made of.

The module is imported again with numbers in place of its weights. Front ends move, cut, join and negate weights,
and sum the two biases of a recurrent cell, so each entry of a model is one entry of the module, or the sum of two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper
from torch.nn import Module

from lipcompile.analysis.clips import Source as Bounds
from lipcompile.core.derivation import Source
from lipcompile.diagnostics import InputError, input_error
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.frontends.torch.alone import NoFunctionError, as_function
from lipcompile.frontends.torch.computed import computed_weights, standardises
from lipcompile.frontends.torch.module import (
    ModuleRun,
    examples_of,
    frozen,
    original_run,
    precision,
    traced_in_numbers,
)
from lipcompile.frontends.torch.padding import padded, without_rows_of_padding
from lipcompile.frontends.torch.translation import translated
from lipcompile.frontends.torch.untraceable import Untraceable

Array = NDArray[Any]
# Whole numbers below these are exact in the numbers of a module.
_EXACT = {"float64": 2**24, "float32": 2**24, "float16": 2**11, "bfloat16": 2**8}
_NO_WAY_BACK = (
    "write the weight into your module, and remove what computes it, before `private` reads it; or deploy the "
    "private module as it is, by lipcompile.export_onnx"
)
_HELP = "give the module, the example and the options that the trained module was made from"


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the entries of the parameters of a model come from.

    sizes: of the trained parameters of the module, by name. Their entries are numbered in this order, from 1.
    found: for each parameter of the model the entries of the module, in its shape, and those that are added; 0 is
        none, and a number below 0 one that is negated.
    loaded: the model. run: the module, to compare with.
    """

    sizes: Mapping[str, int]
    found: Mapping[str, tuple[Array, Array]]
    loaded: Loaded
    run: ModuleRun

    def entries(self, trained: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
        """Return, by parameter of the module, which entries the weights of a model set, and to what.

        The second summand of a sum becomes 0. Raises InputError (LIP523) for parameters of another model.
        """
        ends = np.cumsum([1, *self.sizes.values()])
        values, known = np.zeros(ends[-1]), np.zeros(ends[-1], dtype=bool)
        for name, array in trained.items():
            first, second = self.found.get(name, (None, None))
            if first is None or second is None or first.shape != array.shape:
                raise _foreign(f"`{name}`, of shape {list(array.shape)}, comes from another module")
            places, own = np.abs(first), np.sign(first) * array
            if (known[places] & (values[places] != own)).any():
                raise _foreign(f"`{name}` and another parameter are one weight of the module, and differ")
            values[np.abs(second)], known[np.abs(second)] = 0.0, True
            values[places], known[places] = own, True
        cuts = [slice(start, end) for start, end in pairwise(ends)]
        return {name: (known[cut], values[cut]) for name, cut in zip(self.sizes, cuts, strict=True)}


def origins(
    module: Module, example: Any, options: ModelOptions, trained: Collection[str], *, is_alone: bool = False
) -> Origins:
    """Import a module, and find where its weights went. trained: the names of the parameters that were made of it.

    is_alone: whether it was one op, a network that no rule covers.

    Raises InputError: the module is rejected, or a weight of the model is computed from several (LIP523).
    """
    if is_alone:
        return _of_network(module, example, options)
    try:
        return _origins(module, example, options, trained)
    except InputError as refused:
        if _is_lost(refused):
            raise
        try:
            return _origins(module, example, options, trained, of_one=True)
        except InputError as other:
            raise (other if _is_lost(other) else refused) from None


def _is_lost(refused: InputError) -> bool:
    """Whether a module was imported, and there is no way back."""
    return all(found.code == "LIP523" for found in refused.diagnostics)


def _origins(
    module: Module, example: Any, options: ModelOptions, trained: Collection[str], *, of_one: bool = False
) -> Origins:
    try:
        with without_rows_of_padding(padded(module)):
            trace = traced_in_numbers(module, examples_of(example), options, of_one=of_one)
        model = translated(trace.program)
    except Untraceable as refused:
        raise InputError((refused.diagnostic,)) from None
    fixed = frozen(module, model)
    reading = _reading(model, options, fixed, "clip")
    stored = reading.stored([name for name, _ in module.named_parameters(remove_duplicate=False)])
    if not stored:
        raise _foreign("the module trains no parameter")
    loaded = reading.loaded({})
    if _weights(loaded).keys() != {*trained}:
        other = _reading(model, options, fixed, "auto")
        reading, loaded = _nearer([(reading, loaded), (other, other.loaded({}))], trained)
    computed = [*filter(standardises, loaded.diagnostics), *computed_weights(trace.module, loaded)]
    try:
        found = reading.numbered(stored)
    except InputError:  # numbers in place of weights have no such functions, as of their norms
        if computed:
            raise input_error("LIP523", computed[0].message, _NO_WAY_BACK) from None
        raise
    entries = np.concatenate([[0.0], *(array.ravel() for array in stored.values())])
    for name, array in _weights(loaded).items():
        first, second = found[name]
        if not np.array_equal(_at(entries, first) + _at(entries, second), array):
            message = f"`{name}` is computed from several weights, as by a folded normalisation"
            raise input_error("LIP523", computed[0].message if computed else message, _NO_WAY_BACK)
    sizes = {name: array.size for name, array in stored.items()}
    return Origins(sizes, found, loaded, original_run(trace.module, trace.examples, model))


def _of_network(module: Module, example: Any, options: ModelOptions) -> Origins:
    """Return where the parameters of a network that is one op come from: each is one of the module."""
    try:
        loaded = as_function(module, examples_of(example), Source("", "", "torch", ""), options)
    except (Untraceable, NoFunctionError):
        raise _foreign("the module cannot be computed one example at a time") from None
    network, weights = loaded.source.network, _weights(loaded)
    sizes = {name: prod(shape) for name, shape in network.parameters.items()}
    ends = np.cumsum([1, *sizes.values()])
    numbers = [np.arange(start, end) for start, end in pairwise(ends)]
    places = {name: own.reshape(weights[name].shape) for name, own in zip(weights, numbers, strict=True)}
    found = {name: (own, np.zeros_like(own)) for name, own in places.items()}
    return Origins(sizes, found, loaded, ModuleRun(module, network.inputs, None, precision(module)))


def _reading(model: ModelProto, options: ModelOptions, fixed: frozenset[str], bounds: Bounds) -> _Reading:
    own = replace(options, input_shape={}, bounds=bounds)
    return _Reading(own, *onnx_model.settled(model, own.apart(), fixed))


def _nearer(readings: Sequence[tuple[_Reading, Loaded]], trained: Collection[str]) -> tuple[_Reading, Loaded]:
    """Return the import whose parameters are most of those that were trained.

    Where all is clipped, parameters are trained through functions that are folded where theorems may bound.
    """
    return min(readings, key=lambda one: len(_weights(one[1]).keys() ^ {*trained}))


@dataclass(frozen=True, slots=True)
class _Reading:
    """Imports of one traced module with other weights. fixed: the names of constants that are not trained.

    tensors: the parameters that are read as tensors.
    """

    options: ModelOptions
    model: ModelProto
    fixed: frozenset[str]
    tensors: frozenset[str]

    def stored(self, names: Sequence[str]) -> dict[str, Array]:
        """Return the trained weights by name, in this order."""
        tensors = {tensor.name: tensor for tensor in self.model.graph.initializer if tensor.name not in self.fixed}
        return {name: numpy_helper.to_array(tensors[name]) for name in names if name in tensors}

    def numbered(self, stored: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
        """Return the numbers of the entries that each parameter is made of.

        Of two weights that are summed, one stands at an even place and one at an odd one, as in torch's cells. A
        number is written in digits that the weights can hold.
        """
        base = min(_EXACT[str(array.dtype)] for array in stored.values())
        ends = np.cumsum([1, *(array.size for array in stored.values())])
        found: dict[str, list[Array]] = {}
        for parity in (0, 1):
            scale = 1
            while scale < ends[-1]:
                marks = {
                    name: (np.arange(start, start + array.size) // scale % base * (place % 2 == parity))
                    .reshape(array.shape)
                    .astype(array.dtype)
                    for place, (start, (name, array)) in enumerate(zip(ends, stored.items(), strict=False))
                }
                for name, digits in _weights(self.loaded(marks)).items():
                    numbers = found.setdefault(name, [np.zeros(digits.shape, dtype=np.int64) for _ in range(2)])
                    numbers[parity] += scale * digits.astype(np.int64)
                scale *= base
        return {name: _summands(numbers, int(ends[-1])) for name, numbers in found.items()}

    def loaded(self, weights: Mapping[str, Array]) -> Loaded:
        """Import the module with these weights in place of its own; raises InputError."""
        model = type(self.model)()
        model.CopyFrom(self.model)
        for tensor in model.graph.initializer:
            if tensor.name in weights:
                tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
        source = Source(self.model.graph.name, "", "torch", "")
        loaded = onnx_model.imported(model, source, self.options.apart(), self.fixed, self.tensors)
        if loaded.graph is None:
            raise InputError(loaded.diagnostics)
        return loaded


def _summands(numbers: Sequence[Array], end: int) -> tuple[Array, Array]:
    """Return the first summand of each entry and the second, 0 if there is none or the number has no meaning."""
    even, odd = (np.where((-end < one) & (one < end), one, 0) for one in numbers)
    return np.where(even != 0, even, odd), np.where(even != 0, odd, 0)


def _at(entries: Array, places: Array) -> Array:
    """Return the entries at some places, negated where the place is below 0."""
    found: Array = np.sign(places) * entries[np.abs(places)]
    return found


def _weights(loaded: Loaded) -> dict[str, Array]:
    assert loaded.graph is not None
    trained = {name: one.initial for name, one in loaded.graph.parameters.items() if one.trainable}
    return {name: array for name, array in trained.items() if array is not None}


def _foreign(message: str) -> InputError:
    return input_error("LIP523", message, _HELP)
