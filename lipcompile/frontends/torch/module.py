"""The torch front end: an nn.Module becomes an ONNX model in memory, and goes the way of every other one."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.nn import Embedding, Module
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from lipcompile import limits
from lipcompile.core.derivation import Source
from lipcompile.core.graph import Graph, Node
from lipcompile.diagnostics import Diagnostic, InputError, Severity, input_error
from lipcompile.frontends.onnx import model as onnx_model
from lipcompile.frontends.onnx.file.session import parts
from lipcompile.frontends.onnx.values import DIFFERS, OF_BATCH
from lipcompile.frontends.options import Loaded, ModelOptions, OriginalError
from lipcompile.frontends.repairs import Repairs
from lipcompile.frontends.silence import silence
from lipcompile.frontends.torch.alone import Compared, alone, cause_of_each, of_each, with_way, written
from lipcompile.frontends.torch.computed import computed_weights
from lipcompile.frontends.torch.cut import changed_gradients, noted
from lipcompile.frontends.torch.draws import draws_in_evaluation, means
from lipcompile.frontends.torch.find import find, place_of, summary
from lipcompile.frontends.torch.kinds import in_real_numbers
from lipcompile.frontends.torch.longest import refuse_longest
from lipcompile.frontends.torch.padding import padded, without_rows_of_padding
from lipcompile.frontends.torch.rerun.batched import batched
from lipcompile.frontends.torch.tracing import (
    Example,
    batch,
    evaluating,
    has_open_batch,
    keeping_attributes,
    real,
    retraced,
    traced,
    without_cache,
    written_buffers,
)
from lipcompile.frontends.torch.translation import digest, line_of, translated
from lipcompile.frontends.torch.untraceable import Untraceable, untraceable

Array = NDArray[Any]
# What fixes a batch normalisation of a module rather than of a file: on the command line, and in Python.
_BATCH_NORM = "{} replaces it, to train; .eval() keeps the statistics of a module that is trained already"
_MOST_LISTED = 4
_NO_DIGEST = "0" * 64


def load(reference: str, options: ModelOptions) -> Loaded:
    """Import `package.module:factory`, trace it on --input-shape; raises InputError (LIP020 to LIP023)."""
    if not options.input_shape:
        message = f"`{reference}` is a torch module: the shape of its examples is not known"
        raise input_error("LIP023", message, "give it, without the batch: --input-shape 3,32,32")
    examples = [Example(name, shape) for name, shape in options.input_shape.items()]
    name = reference.rpartition(":")[2].rpartition(".")[2]
    loaded = _loaded(find(reference), examples, name, reference, options)
    shapes = (f"{one.name}{'=' * bool(one.name)}{','.join(map(str, one.shape))}" for one in examples)
    model = shlex.join([reference, *(word for shape in shapes for word in ("--input-shape", shape))])
    return _repaired(loaded, "`lipcompile fix`", model)


def from_example(module: Module, example: Any, options: ModelOptions) -> Loaded:
    """Trace a module on an example: a tensor [B, …], several of them, or the shape of one example."""
    if not isinstance(module, Module):
        kind = "a class" if isinstance(module, type) else f"an object of type {type(module).__qualname__}"
        help_line = "call it, and give what it returns" if callable(module) else ""
        raise input_error("LIP022", f"{kind} is no torch.nn.Module", help_line)
    kind = type(module)
    loaded = _loaded(
        module, examples_of(example), kind.__name__, f"{kind.__module__}.{kind.__qualname__}", options
    )
    return _repaired(loaded, 'batch_norm="group_norm"', "")


def examples_of(example: Any) -> list[Example]:
    """Return the inputs that an example, or the shape of each, stands for; raises InputError (LIP023)."""
    if isinstance(example, Tensor):
        return [_like("", example)]
    if isinstance(example, Mapping) and all(isinstance(one, Tensor) or _is_shape(one) for one in example.values()):
        return [
            _like(str(name), one) if isinstance(one, Tensor) else Example(str(name), tuple(one))
            for name, one in example.items()
        ]
    if isinstance(example, Sequence) and example:
        if all(isinstance(one, Tensor) for one in example):
            return [_like("", one) for one in example]
        if _is_shape(example):
            return [Example("", tuple(example))]
    help_line = "give a tensor [batch, …], a tuple of tensors, or the shape of one example, such as (3, 32, 32)"
    raise input_error("LIP023", "the example is neither a batch of examples nor a shape", help_line)


def _is_shape(given: Any) -> bool:
    return isinstance(given, Sequence) and all(isinstance(size, int) and size > 0 for size in given)


def _like(name: str, tensor: Tensor) -> Example:
    if tensor.dim() == 0:
        raise input_error("LIP023", "an example has no batch axis: it is one number", "give a tensor [batch, …]")
    return Example(name, tuple(tensor.shape[1:]), tensor.dtype)


def _loaded(module: Module, examples: Sequence[Example], name: str, path: str, options: ModelOptions) -> Loaded:
    lazy = next((place for place, one in module.named_parameters() if is_lazy(one)), None)
    if lazy is not None:
        message = f"the parameter `{lazy}` of a lazy module has no shape yet"
        raise input_error("LIP023", message, "call the module once, on an example")
    if options.clips_all:  # then no weight is held against a constraint, which takes a while
        options = replace(options, bounds="clip")
    known = None
    with keeping_attributes(module):
        loaded = _read(module, examples, name, path, options)
        if loaded.graph is None:
            loaded, known = _of_each(module, examples, loaded, options)
    if loaded.graph is not None:
        return loaded
    if options.bounds != "clip" or options.input_norm is not None:
        return with_way(loaded)
    known = known if options.repairs is None else None  # once more, with a note of each replacement
    made = alone(module, examples, loaded, options, known) or loaded
    if made.source.network is None or options.is_repaired:
        return made
    run = partial(ModuleRun, module, made.source.network.inputs, None, precision(module))
    told = (*made.diagnostics, *_ignored(module, ()), *_not_kept(written(made)), *_rounded(module))
    return replace(made, original=run, diagnostics=told)


def _of_each(
    module: Module, examples: Sequence[Example], refused: Loaded, options: ModelOptions
) -> tuple[Loaded, Compared | None]:
    """Read a refused module from the trace of one example, if it computes the same of a batch.

    Returns the module, refused if it could not be read so, and what was compared. Statistics of the batch are the
    cause that can be fixed, so they are told.
    """
    cause = cause_of_each(refused)
    if cause is None:
        return refused, None
    try:
        known = of_each(module, examples, refused, options.apart().repairs)
    except Untraceable as statistics:
        return replace(refused, diagnostics=(statistics.diagnostic,)), None
    if known is None:
        return refused, None
    if options.repairs is not None:
        options.repairs.made.clear()
    try:
        loaded = _read(module, examples, refused.source.name, refused.source.path, options, of_one=True)
    except InputError:
        return refused, known
    if loaded.graph is None:
        return refused, known
    return replace(loaded, diagnostics=(*loaded.diagnostics, cause)), known


def _read(
    module: Module,
    examples: Sequence[Example],
    name: str,
    path: str,
    options: ModelOptions,
    *,
    of_one: bool = False,
) -> Loaded:
    """Read a module operation by operation. of_one: the operations of a batch of one, for each example."""

    def imported(program: ExportedProgram, repairs: Repairs | None) -> tuple[Loaded, ModelProto]:
        model = translated(program)
        limits.spend("constants", -4 * _size(module), "")  # as for a file: what is computed from weights
        source = Source(name, path, "torch", digest(model))
        own = replace(options, input_shape={}, repairs=repairs)
        return onnx_model.imported(model, source, own, frozen(module, model)), model

    hides = options.bounds in ("clip", "auto") and options.repairs is None
    rows = padded(module) if hides else {}
    try:
        _refuse_kept_statistics(module)
        with without_rows_of_padding(rows), noted() as seen:
            module, read, program, taken = traced_in_numbers(module, examples, options, of_one=of_one)
            refuse_longest(read, taken)
        is_open = has_open_batch(program)
        loaded, model = imported(program, options.repairs)
        if loaded.graph is not None and not is_open:
            again = options.apart().repairs  # what is fixed is told once
            with without_rows_of_padding(rows):
                other = retraced(read, taken)
            _refuse_numbers_of_batch(loaded.graph, imported(other, again)[0].graph, program)
        drawn = () if loaded.graph is None else tuple(draws_in_evaluation(read, taken, program))
    except Untraceable as refused:
        return Loaded(Source(name, path, "torch", _NO_DIGEST), None, (refused.diagnostic,))
    return replace(
        loaded,
        diagnostics=(
            *loaded.diagnostics,
            *computed_weights(module, loaded),
            *_ignored(module, rows),
            *_written(module, program),
            *changed_gradients(module, program, seen, loaded.computed),
            *drawn,
            *_left_out(module, model),
            *_rounded(module),
        ),
        original=None if options.is_repaired else partial(original_run, module, taken, model),
    )


class Trace(NamedTuple):
    """A trace: of `read`, which computes what `module` does, on examples of these kinds."""

    module: Module
    read: Module
    program: ExportedProgram
    examples: Sequence[Example]


def traced_in_numbers(
    module: Module, examples: Sequence[Example], options: ModelOptions, *, of_one: bool = False
) -> Trace:
    """Trace a module, or the one that takes all examples as real numbers if they are of both kinds.

    of_one: trace what it computes of each example alone. Raises Untraceable; InputError (LIP023).
    """
    program, taken = traced(module, examples, of_one=of_one)
    if options.clips_all and options.input_norm is None:  # no example is scaled: whole numbers stay whole
        module, real = in_real_numbers(module, taken)
        if real is not taken:
            program, taken = traced(module, real, of_one=of_one)
    if not of_one:
        return Trace(module, module, program, taken)
    read = batched(module, taken, program)
    return Trace(module, read, *traced(read, taken))


def _size(module: Module) -> int:
    """Return how many bytes the parameters and buffers of a module take."""
    stored = (*module.parameters(), *module.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in stored)


def _refuse_kept_statistics(module: Module) -> None:
    """Raise Untraceable for an instance normalisation in training mode that keeps statistics of the data."""
    from torch.nn.modules.instancenorm import _InstanceNorm

    for name, part in module.named_modules():
        if isinstance(part, _InstanceNorm) and part.training and part.track_running_stats:
            message = (
                f"`{name}` stores statistics of the examples, without noise, which it normalises by in evaluation "
                "mode: leave track_running_stats out"
            )
            raise untraceable("LIP101", message, "", None)


def _refuse_numbers_of_batch(one: Graph, other: Graph | None, program: ExportedProgram) -> None:
    """Raise Untraceable if a module that was traced with batches of two fixed sizes gave two graphs.

    Shapes are those of one example in both, so it is a number that differs. program: of the first.
    """
    again = () if other is None else other.nodes
    pairs = zip_longest(one.nodes, again[: len(one.nodes)])
    node = next(
        (node for node, twin in pairs if node != twin or _weights(one, node) != _weights(other, twin)), None
    )
    if node is not None or len(again) > len(one.nodes):
        raise untraceable("LIP108", DIFFERS, OF_BATCH, line_of(program, node.name) if node else None)


def _weights(graph: Graph | None, node: Node | None) -> list[bytes | None]:
    """Return the stored values of a node's parameters."""
    if graph is None or node is None:
        return []
    stored = (graph.parameters[name].initial for name in node.parameters.values())
    return [None if array is None else array.tobytes() for array in stored]


def _ignored(module: Module, carried: Collection[str]) -> Iterator[Diagnostic]:
    """Yield a warning of embeddings whose rows torch trains in different ways; not of padding that is carried."""
    for name, part in module.named_modules():
        if isinstance(part, Embedding) and part.weight.requires_grad:
            pads = part.padding_idx is not None and name not in carried
            options = {"padding_idx": pads, "scale_grad_by_freq": part.scale_grad_by_freq}
            for option in (option for option, given in options.items() if given):
                message = (
                    f"`{name or 'the embedding'}`: {option} is ignored, all rows of the table are trained alike"
                )
                yield Diagnostic("LIP125", message, "leave it out", Severity.WARNING, node=name or None)


def _written(module: Module, program: ExportedProgram) -> Iterator[Diagnostic]:
    """Yield a warning of buffers that `forward` writes into; those of norms have messages of their own."""
    return _not_kept(
        [
            name
            for name in written_buffers(program)
            if not isinstance(module.get_submodule(name.rpartition(".")[0]), _NormBase)
        ]
    )


def _not_kept(names: Sequence[str]) -> Iterator[Diagnostic]:
    if names:
        message = f"`forward` writes into {_listed(names)}: the emitted module keeps what is stored there now"
        help_line = "leave the writing out, or compute it from the example in each pass"
        yield Diagnostic("LIP126", message, help_line, Severity.WARNING)


def _left_out(module: Module, model: ModelProto) -> Iterator[Diagnostic]:
    """Yield a warning of parameters that the module trains, and that its output does not depend on."""
    read = {tensor.name for tensor in model.graph.initializer}
    named = list(module.named_parameters(remove_duplicate=False))
    used = {id(parameter) for name, parameter in named if name in read}
    unused = [name for name, parameter in named if parameter.requires_grad and id(parameter) not in used]
    if unused:
        message = f"the output does not depend on {_listed(unused)}: left out"
        yield Diagnostic("LIP123", message, "use what is left out in `forward`, or delete it", Severity.WARNING)


def _rounded(module: Module) -> Iterator[Diagnostic]:
    """Yield a warning of parameters that are not in float32, which the module that is emitted has."""
    kinds = {name: str(parameter.dtype).removeprefix("torch.") for name, parameter in module.named_parameters()}
    other = [name for name, kind in kinds.items() if kind not in ("float32", "complex64")]
    if other:
        kind = kinds[other[0]]
        message = f"the emitted module computes in float32, but {kind} is the kind of numbers of {_listed(other)}"
        help_line = f"call .to(torch.{kind}) on the emitted module for {kind}, or .float() on yours for float32"
        yield Diagnostic("LIP124", message, help_line, Severity.WARNING)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_MOST_LISTED])
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"{shown}{more}"


def original_run(module: Module, examples: Sequence[Example], model: ModelProto) -> ModuleRun:
    """Return the module as what its model is compared with; raises OriginalError."""
    from lipcompile.frontends.onnx.inputs import sources

    inputs = sources(model.graph, {})
    if any(one.name and one.name != source.name for one, source in zip(examples, inputs, strict=True)):
        raise OriginalError("torch.export has another order of the inputs than --input-shape")
    return ModuleRun(module, examples, inputs[0].batch, precision(module))


def frozen(module: Module, model: ModelProto) -> frozenset[str]:
    """Return the names of all constants but those that the module trains: buffers, and what the exporter made."""
    parameters = module.named_parameters(remove_duplicate=False)
    trained = {name for name, parameter in parameters if parameter.requires_grad}
    made = {name for node in model.graph.node if node.op_type == "Constant" for name in node.output}
    return frozenset({tensor.name for tensor in model.graph.initializer} | made) - trained


def _repaired(loaded: Loaded, help_line: str, model: str) -> Loaded:
    """Return what was loaded, with the fixes of a module; model: how a command line names it."""
    return replace(
        loaded,
        diagnostics=tuple(
            replace(
                found, model=model, help=_BATCH_NORM.format(help_line) if found.code == "LIP101" else found.help
            )
            for found in loaded.diagnostics
        ),
    )


# The module itself as something that computes


@dataclass(frozen=True, slots=True)
class ModuleRun:
    """A module that runs, in evaluation mode for as long as it does: see `Original`."""

    module: Module
    examples: Sequence[Example]
    batch: int | None
    precision: str
    runner: str = "the torch module"

    def __call__(self, x: Array) -> Array:
        """Map examples to outputs; raises OriginalError."""
        likes, named = batch(self.module, self.examples, len(x))
        arrays = [torch.from_numpy(part.copy()) for part in parts(x, [one.shape for one in self.examples])]
        given = iter(arrays)
        args = [next(given).to(like) for like in likes]
        kwargs = {name: next(given).to(like) for name, like in named.items()}
        try:
            with silence(), evaluating(self.module), without_cache(self.module), means(), torch.no_grad():
                (output,) = torch.utils._pytree.tree_leaves(self.module(*args, **kwargs))
        except Exception as error:
            place = place_of(error)
            line = f" at {place.file}:{place.line}" if place else ""
            raise OriginalError(f"the module fails{line}: {summary(error)}") from None
        if isinstance(output, FakeTensor):
            raise OriginalError(
                "the module has kept a tensor of its trace, without numbers, where no copy of it is taken back, "
                "as functools.lru_cache does: clear this cache before you call your module again"
            )
        return np.asarray(output.detach().double().cpu().numpy())


def precision(module: Module) -> str:
    """Return the name of the numbers that a module computes with, such as float32."""
    return str(real(module)).removeprefix("torch.")
