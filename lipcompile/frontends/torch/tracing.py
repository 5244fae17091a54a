"""nn.Module -> ExportedProgram: torch.export traces a module on tensors without numbers; nothing is computed."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice, product
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, dtype
from torch._subclasses import FakeTensor
from torch.backends import opt_einsum
from torch.export import Dim, ExportedProgram, export
from torch.nn import Module
from torch.nn.modules.dropout import _DropoutNd

from lipcompile.core.record import Shape
from lipcompile.diagnostics import InputError, Location, input_error
from lipcompile.frontends.onnx.node import traced_line
from lipcompile.frontends.silence import silence
from lipcompile.frontends.torch.branches import Branches, differing
from lipcompile.frontends.torch.experts import with_all_experts
from lipcompile.frontends.torch.find import place_of, summary
from lipcompile.frontends.torch.lengths import padded_to_lengths
from lipcompile.frontends.torch.packing import without_packing
from lipcompile.frontends.torch.rerun.complex_pairs import holds_complex, in_pairs, is_view
from lipcompile.frontends.torch.rewritten import rewritten
from lipcompile.frontends.torch.untraceable import Untraceable, untraceable

# Exceptions of torch.export, by the names of their classes: the trace would depend on the numbers in the input.
_DATA_DEPENDENT = frozenset(
    (
        "GuardOnDataDependentSymNode",
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "DYNAMIC_CONTROL_FLOW",
    )
)
# Whether each input is real numbers or tokens is tried for so many inputs.
_MOST_UNSAID = 3
# torch.export takes every open size to be at least 2.
_LEAST_OPEN = 2


@dataclass(frozen=True, slots=True)
class Example:
    """One input: its name, empty if it is the only one, the shape of one example, and its kind of numbers.

    kind: None means real numbers, or tokens if the module takes nothing else.
    """

    name: str
    shape: Shape
    kind: dtype | None = None


def traced(
    module: Module, examples: Sequence[Example], *, of_one: bool = False
) -> tuple[ExportedProgram, tuple[Example, ...]]:
    """Trace a module as it is, in training mode or not; also return which kind of numbers it takes.

    Inputs with names are put in the order of `forward`. of_one: on a batch of one, with this fixed size. Raises
    Untraceable if the module has no graph; InputError (LIP023) if it does not take such examples.
    """
    program = partial(_program_of_one if of_one else _program, module)
    order = list(inspect.signature(module.forward).parameters)
    if all(example.name in order for example in examples):
        examples = sorted(examples, key=lambda example: order.index(example.name))
    try:
        return program(examples), tuple(examples)
    except InputError:
        tokens = as_tokens(module, examples)
        return program(tokens), tokens


def _by_size(place: Location | None) -> Untraceable:
    message = "which operations are done may depend on the batch size: they differ from batch to batch"
    help_line = (
        "do the same for batches of all sizes, and use x.shape[0] as it is: int(), float() and range() fix it"
    )
    return untraceable("LIP108", message, help_line, place)


def has_open_batch(program: ExportedProgram) -> bool:
    """Whether a program was traced for a batch of any size; raises Untraceable if what it does depends on that."""
    _refuse_open_sizes(program)
    ranges = program.range_constraints.values()
    if any(found.lower > _LEAST_OPEN or found.upper < sys.maxsize for found in ranges):
        raise _by_size(None)
    inputs = (node.meta["val"] for node in program.graph.nodes if node.name in program.graph_signature.user_inputs)
    return any(not isinstance(size, int) for value in inputs for size in getattr(value, "shape", ()))


def _refuse_open_sizes(program: ExportedProgram) -> None:
    """Raise Untraceable for a tensor whose size is computed from numbers of the input, as that of x[x > 0] is."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    for node in program.graph.nodes:
        if isinstance(made := node.meta.get("val"), Tensor) and free_unbacked_symbols(made):
            message = (
                "how many entries are computed with depends on the numbers in the input: this is no fixed graph"
            )
            help_line = "compute with all entries, and choose by a product or torch.where"
            raise untraceable("LIP120", message, help_line, traced_line(str(node.meta.get("stack_trace"))))


def written_buffers(program: ExportedProgram) -> list[str]:
    """Return the names of the buffers that a traced module writes into, through views as well."""
    buffers, found = program.graph_signature.inputs_to_buffers, dict[str, None]()
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        written: Any = next(iter(node.args), None)
        if schema is None or not schema.is_mutable:
            continue
        while is_view(written):
            written = written.args[0]
        if getattr(written, "name", None) in buffers:
            found[buffers[written.name]] = None
    return list(found)


def retraced(module: Module, examples: Sequence[Example]) -> ExportedProgram:
    """Trace a module once more that takes a fixed size of the batch only, with another one; raises Untraceable."""
    try:
        return _exported(module, examples, is_open=False, attempt=1)
    except Exception as error:
        raise _explained(module, examples, error) from None


def as_tokens(module: Module, examples: Sequence[Example]) -> tuple[Example, ...]:
    """Return the examples with whole numbers where nothing is said and the module takes nothing else.

    A mask beside tokens is whole numbers, too, if the module takes these.
    """
    choices = [(one,) if one.kind else (one, replace(one, kind=torch.int64)) for one in examples[:_MOST_UNSAID]]
    for chosen in sorted(product(*choices), key=lambda chosen: len({one.kind for one in chosen})):
        taken = (*chosen, *examples[_MOST_UNSAID:])
        if failure_of(module, taken) is None:
            return taken
    return tuple(examples)


# Examples


def batch(module: Module, examples: Sequence[Example], size: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return a batch of zeros, by position and by name, where the module's parameters are."""
    device = next((parameter.device for parameter in module.parameters()), None)
    made = [
        (example.name, torch.zeros(size, *example.shape, dtype=example.kind or real(module), device=device))
        for example in examples
    ]
    return tuple(one for name, one in made if not name), {name: one for name, one in made if name}


def real(module: Module) -> dtype:
    """Return the kind of numbers that a module computes with."""
    kinds = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    return next(kinds, torch.float32)


def _batch_sizes(module: Module, examples: Sequence[Example]) -> Iterator[int]:
    """Yield primes that are no other size around: a fixed batch must not be mistaken for something else."""
    sizes = {size for example in examples for size in example.shape}
    sizes |= {size for parameter in module.parameters() for size in parameter.shape}
    return (n for n in count(3) if n not in sizes and all(n % d for d in range(2, n)))


# Tracing


def _program(module: Module, examples: Sequence[Example]) -> ExportedProgram:
    """Trace with an open size of the batch, or with a fixed one where the code does not allow that."""
    from torch._dynamo.exc import UserError

    branches = Branches()
    trace = partial(_exported, module, examples, is_open=True)
    try:
        with branches.watched():
            program = trace()
    except UserError:  # the size became a constant on the way
        if branches.places:
            raise _by_size(branches.places[0]) from None
    except Exception as error:
        raise _explained(module, examples, error) from None
    else:
        place = differing(branches, program, trace)
        if place is not None:
            raise _by_size(place)
        return program
    try:
        return _exported(module, examples, is_open=False)
    except Exception as error:
        raise _explained(module, examples, error) from None


def _program_of_one(module: Module, examples: Sequence[Example]) -> ExportedProgram:
    try:
        return _exported(module, examples, is_open=False, size=1)
    except Exception as error:
        raise _explained(module, examples, error) from None


def _exported(
    module: Module, examples: Sequence[Example], *, is_open: bool, attempt: int = 0, size: int | None = None
) -> ExportedProgram:
    size = size or next(islice(_batch_sizes(module, examples), attempt, None))
    args, kwargs = batch(module, examples, size)
    axis = {0: Dim.DYNAMIC}
    open_axes = (tuple(axis for _ in args), dict.fromkeys(kwargs, axis)) if is_open else None
    # The order of three or more factors would depend on their sizes, that of the batch among them.
    with (
        silence(),
        rewritten(),
        _out_of_place(module),
        without_cache(module),
        _without_iterations(module),
        with_all_experts(),
        without_packing(module, args, kwargs),
        padded_to_lengths(module),
        _spelled_out(module, len(args), kwargs),
        opt_einsum.flags(enabled=False),
    ):
        axes = _by_name(module, open_axes)
        program = export(module, args, kwargs, dynamic_shapes=axes, strict=False)
        if not holds_complex(program):
            return program
        return export(in_pairs(program, module), args, kwargs, dynamic_shapes=axes, strict=False)


@contextmanager
def _out_of_place(module: Module) -> Iterator[None]:
    """Let dropout write to new memory, and copy, meanwhile: in place it is traced as its parts, not as dropout."""
    changed = [
        part for part in module.modules() if isinstance(part, _DropoutNd) and part.inplace and part.training
    ]
    hooks = [part.register_forward_hook(_written_back, with_kwargs=True) for part in changed]
    try:
        for part in changed:
            part.inplace = False
        yield
    finally:
        for part, hook in zip(changed, hooks, strict=True):
            part.inplace = True
            hook.remove()


def _written_back(_: Module, args: Sequence[Tensor], kwargs: Mapping[str, Tensor], dropped: Tensor) -> Tensor:
    """Write what was dropped out over the operand, which may be read again, by itself or as a part of another."""
    operand = args[0] if args else kwargs["input"]
    return operand.copy_(dropped)


@contextmanager
def _spelled_out(module: Module, args: int, names: Collection[str]) -> Iterator[None]:
    """Let `forward` say each argument that `*args` and `**kwargs` take meanwhile.

    torch.export cannot open the size of the others. With a fixed size, nothing sees what the code asks about it.
    """
    forward = module.forward
    kinds = {name: one.kind for name, one in inspect.signature(forward).parameters.items()}
    if not {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} & {*kinds.values()}:
        yield
        return

    def spelled(*given: Any, **named: Any) -> Any:
        return forward(*given, **named)

    plain = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    free = (name for name in map("argument_{}".format, count()) if name not in names)
    positions = [*islice((*plain, *islice(free, args)), args)]
    spelled.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in positions),
            *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names),
        ]
    )
    with patch.object(module, "forward", spelled):
        yield


def _by_name(module: Module, axes: tuple[tuple[Any, ...], dict[str, Any]] | None) -> Any:
    """Return what torch.export wants: a tuple, or a mapping where an argument is given by name."""
    if axes is None or not axes[1]:
        return axes and axes[0]
    names = inspect.signature(module.forward).parameters
    return {**dict(zip(names, axes[0], strict=False)), **axes[1]}


def _explained(module: Module, examples: Sequence[Example], error: Exception) -> Exception:
    """Return why a module cannot be traced: its control flow, the examples, or torch."""
    if isinstance(error, Untraceable):
        return error
    names = {cls.__name__ for cls in type(error).__mro__}
    names.add(getattr(getattr(error, "error_type", None), "name", ""))
    if names & _DATA_DEPENDENT:
        message = "which operations are done depends on the numbers in the input: this is no fixed graph"
        help_line = "compute both cases and choose by a product or torch.where, or leave the branch out"
        return untraceable("LIP120", message, help_line, place_of(error))
    failure = failure_of(module, examples)
    if failure is not None:
        shown = ", ".join(f"{one.name or 'x'}[{', '.join(map(str, ('B', *one.shape)))}]" for one in examples)
        message = f"the module fails on examples {shown}: {summary(failure)}"
        index = "use an index within the axis; or " if isinstance(failure, IndexError) else ""
        return input_error("LIP023", message, f"{index}{_shapes(module, len(examples))}", place_of(failure))
    message = f"torch.export cannot trace the module: {summary(error)}"
    return untraceable("LIP121", message, "write this line with operations of torch only", place_of(error))


def _shapes(module: Module, given: int) -> str:
    """Return how to give the shapes of all inputs that the module needs."""
    arguments = inspect.signature(module.forward).parameters.values()
    needed = [one.name for one in arguments if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if len(needed) <= max(given, 1):
        given_shape = "--input-shape 3,32,32, or example=(3, 32, 32) in Python"
        return f"give the shape of one example, without the batch: {given_shape}"
    return f"give the shape of each: {' '.join(f'--input-shape {name}=3,32,32' for name in needed)}"


def failure_of(module: Module, examples: Sequence[Example]) -> Exception | None:
    """Run a copy of the module on zeros, on ones, as of lengths, and on random numbers.

    Return how it fails, None if it works on one of them.
    """
    failures = list[Exception]()
    for fill in (torch.zeros_like, torch.ones_like, _random_like):
        try:
            twin = copy.deepcopy(module)
            args, kwargs = batch(module, examples, 3)
            with silence(), torch.no_grad():
                twin(*map(fill, args), **{name: fill(one) for name, one in kwargs.items()})
        except Exception as error:
            failures.append(error)
        else:
            return None
    return failures[0]


def _random_like(x: Tensor) -> Tensor:
    return torch.randn_like(x) if x.is_floating_point() else torch.ones_like(x)


@contextmanager
def without_cache(module: Module) -> Iterator[None]:
    """Let models of transformers return the logits alone meanwhile, without the keys and values that they keep."""
    configs = {
        id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None
    }
    changed = [config for config in configs.values() if getattr(config, "use_cache", None) is True]
    try:
        for config in changed:
            config.use_cache = False
        yield
    finally:
        for config in changed:
            config.use_cache = True


@contextmanager
def _without_iterations(module: Module) -> Iterator[None]:
    """Let spectral normalisations divide by the norms estimated so far meanwhile, as in evaluation mode."""
    with ExitStack() as stack:
        for part in module.modules():
            for one in (part, *part._forward_pre_hooks.values()):
                if getattr(one, "n_power_iterations", None) is not None:
                    stack.enter_context(patch.object(one, "n_power_iterations", 0))
        yield


@contextmanager
def keeping_attributes(module: Module) -> Iterator[None]:
    """Take back the tensors without numbers that a trace assigns to attributes of a module and its parts."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    try:
        yield
    finally:
        for part, own in before:
            left = [name for name, value in vars(part).items() if isinstance(value, FakeTensor)]
            for name in left:
                del vars(part)[name]
                vars(part).update({name: own[name]} if name in own else {})


@contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """Put a module into evaluation mode, and every part back into its own."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
