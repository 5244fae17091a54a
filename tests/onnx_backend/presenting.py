"""How a test case becomes a model with a batch: which inputs are the example, where the batch stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx.version_converter
from onnx import helper, numpy_helper

from tests.onnx_backend.batching import NotPresentable, in_front
from tests.onnx_backend.cases import Array, Case

FLOATS = ("float16", "bfloat16", "float32", "float64")
TOKENS = ("int32", "int64")
OLDEST = 7  # of the operator sets that are imported
TOKENS_READ = "whole numbers as tokens"
FREE_WEIGHTS = 4  # the version of the file format from which on stored tensors need not be listed as inputs


@dataclass(frozen=True, slots=True, eq=False)
class Presented:
    """A model of one output, batches for the inputs that are the example, and the batch of outputs to expect.

    how: in words. coarse: whether the reference is rounded to 16 bits. tokens: whether the example is.
    """

    how: str
    model: onnx.ModelProto
    feeds: tuple[Array, ...]
    expected: Array
    coarse: bool
    tokens: bool = False


def presentations(case: Case, output: int) -> Iterator[Presented]:
    """Yield the readings of a case for one of its outputs.

    The example is the first input of real numbers, or all of them, or else the first of whole numbers, read as
    tokens; the other inputs are constants. Its batch is axis 0, or axis 1 by its name, or an axis put in front.
    """
    expected = case.outputs[output]
    if expected is None:
        return
    given = _inputs(case)
    for what, names in _examples(given):
        try:
            model = _specialised(case.model, given, names, output)
            feeds = {name: given[name] for name in names}
            for presented in _placed(model, feeds, expected):
                yield replace(presented, how=f"{what}, {presented.how}", tokens=what == TOKENS_READ)
        except NotPresentable:
            continue


def _placed(model: onnx.ModelProto, feeds: dict[str, Array], expected: Array) -> Iterator[Presented]:
    """Yield the readings of a model, by where its batch stands; raises NotPresentable behind the last."""
    arrays = tuple(feeds.values())
    coarse = any(str(array.dtype) in FLOATS[:2] for array in (expected, *arrays))
    if len({array.shape[:1] for array in arrays}) == 1 and arrays[0].ndim:
        yield Presented("batch as axis 0", model, arrays, expected, coarse)
    if len({array.shape[1:2] for array in arrays}) == 1 and min(array.ndim for array in arrays) > 1:
        yield from _second(model, feeds, expected, coarse)
    wider = in_front(model, feeds, list(feeds))
    yield Presented("batch in front", wider, tuple(array[None] for array in arrays), expected[None], coarse)


def _second(model: onnx.ModelProto, feeds: dict[str, Array], expected: Array, coarse: bool) -> Iterator[Presented]:
    """Yield the readings with axis 1 as the batch, one for each axis of the output that may be it, then moved."""
    size = next(iter(feeds.values())).shape[1]
    for axis in (axis for axis in range(expected.ndim) if expected.shape[axis] == size):
        made = onnx.ModelProto()
        made.CopyFrom(model)
        for value in made.graph.input:
            if value.name in feeds:
                value.type.tensor_type.shape.dim[1].dim_param = "batch"
        (output,) = made.graph.output
        order = [axis, *(other for other in range(expected.ndim) if other != axis)]
        made.graph.node.append(helper.make_node("Transpose", [output.name], ["in_front"], perm=order))
        output.CopyFrom(helper.make_tensor_value_info("in_front", output.type.tensor_type.elem_type, None))
        batches = tuple(np.moveaxis(array, 1, 0) for array in feeds.values())
        yield Presented("batch as axis 1", made, batches, np.transpose(expected, order), coarse)


def _inputs(case: Case) -> dict[str, Array]:
    """Return the data by the name of the input; inputs that are no tensors are left out."""
    stored = {tensor.name for tensor in case.model.graph.initializer}
    names = [value.name for value in case.model.graph.input if value.name not in stored]
    return {name: array for name, array in zip(names, case.inputs, strict=False) if array is not None}


def _examples(given: dict[str, Array]) -> Iterator[tuple[str, list[str]]]:
    """Yield the inputs that may be the example."""
    reals = [name for name, array in given.items() if str(array.dtype) in FLOATS and array.size]
    tokens = [name for name, array in given.items() if str(array.dtype) in TOKENS and array.size]
    if reals:
        yield "the first real input", reals[:1]
    if len(reals) > 1:
        yield "all real inputs", reals
    if tokens:
        yield TOKENS_READ, tokens[:1]


def _specialised(
    model: onnx.ModelProto, given: dict[str, Array], names: Sequence[str], output: int
) -> onnx.ModelProto:
    """Store all inputs but these, and keep one output."""
    made = _modern(model)
    stored = {tensor.name for tensor in made.graph.initializer}
    kept = [value for value in made.graph.input if value.name in names or value.name in stored]
    others = [value.name for value in made.graph.input if value.name not in names and value.name not in stored]
    if any(name not in given for name in others):
        raise NotPresentable("an input that is no tensor")
    try:
        made.graph.initializer.extend(numpy_helper.from_array(np.asarray(given[name]), name) for name in others)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise NotPresentable(f"an input that cannot be stored: {error}") from None
    del made.graph.input[:]
    made.graph.input.extend(kept)
    chosen = onnx.ValueInfoProto()
    chosen.CopyFrom(made.graph.output[output])
    del made.graph.output[:]
    made.graph.output.append(chosen)
    return made


def _modern(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in operator set 7 at least, and in a version of the file format where inputs need no entry."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    if any(entry.domain == "" and entry.version < OLDEST for entry in model.opset_import):
        made = onnx.version_converter.convert_version(model, OLDEST)
    made.ir_version = max(made.ir_version, FREE_WEIGHTS)
    return made


def behind(presented: Presented) -> Presented:
    """Return the model with a change of sign behind its output, which then does not end in a softmax."""
    made = onnx.ModelProto()
    made.CopyFrom(presented.model)
    (output,) = made.graph.output
    made.graph.node.append(helper.make_node("Neg", [output.name], ["negated"]))
    output.name = "negated"
    how = f"{presented.how}, with a change of sign behind"
    return replace(presented, how=how, model=made, expected=-presented.expected)
