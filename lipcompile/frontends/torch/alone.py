"""A module that no rule covers, as one op: a function of Python, of one example and its copies of the parameters.

Bounds by clip need no more of a network than gradients of single examples. So the graph has, for every parameter,
zeros of each example plus a bias, and one op that calls the module with them, in a batch of one.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call
from torch.nn import Module
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from lipcompile.core.derivation import Source
from lipcompile.core.graph import Graph, GraphBuilder, ParameterChoice, Value
from lipcompile.core.names import identifier
from lipcompile.core.record import FREE, Shape
from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.frontends.onnx.inputs import Source as Input
from lipcompile.frontends.onnx.inputs import declare
from lipcompile.frontends.onnx.layout import FIRST
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.frontends.repairs import Repairs, groups_of
from lipcompile.frontends.silence import silence
from lipcompile.frontends.torch.draws import means
from lipcompile.frontends.torch.find import find
from lipcompile.frontends.torch.tracing import Example, as_tokens, failure_of, real
from lipcompile.frontends.torch.untraceable import Untraceable, untraceable
from lipcompile.ops.linear.rules import BIAS, BiasShape
from lipcompile.ops.own.rules import OWN_NETWORK, ZEROS, OwnNetwork, Zeros

# Errors that say nothing of a network whose examples are computed one by one: of rules, and of traces.
_OF_RULES = frozenset(
    (
        *("LIP100", "LIP102", "LIP103", "LIP104", "LIP105", "LIP107", "LIP109", "LIP110", "LIP111", "LIP120"),
        *("LIP121", "LIP308"),
    )
)
_MIXES = "LIP108"  # an operation may mix examples, as far as its rule can tell
# Errors that another trace would have as well: of functions, and of branches on numbers.
_OF_FUNCTIONS = ("LIP105", "LIP120")
_MANY_TOKENS = 2**16  # of different ones, where no table says how many: one-hot vectors of them fit into memory
_EXAMPLES = 3
_SIZES = (2, 5, 16, 64, 128)  # of batches, as long as one with a copy of all parameters for each has
_MOST_ENTRIES = 2**27  # so many entries at most
_AGREES, _ROUNDED = 1e-3, 0.1  # shares of the largest number of a tensor, and of all
_ROUNDINGS = 4  # by which sums in half precision may differ
_SPREAD = 10.0  # of large numbers
_SEED = 0
_STATE = "the module computes something else of the same examples in each call, with equal random numbers"


class NoFunctionError(Exception):
    """The module is no function of one example, as far as this file can tell."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Network:
    """A copy of a module, which is never trained itself: see `lipcompile_torch.nn.own_networks.OwnNetwork`."""

    module: Module
    inputs: tuple[Example, ...]
    parameters: Mapping[str, Shape]


class Compared(NamedTuple):
    """What a module is a function of, the module, the size of an output, and how many tokens there are."""

    network: Network
    module: Module
    size: Shape
    tokens: tuple[int, ...]


def alone(
    module: Module, examples: Sequence[Example], refused: Loaded, options: ModelOptions, known: Compared | None
) -> Loaded | None:
    """Return a module that was refused as a function of one example; None if it is none.

    Where an operation may mix examples, it must be compared in training mode, too. known: if it was compared.
    """
    errors = _errors(refused)
    codes = {found.code for found in errors}
    if not codes <= {*_OF_RULES, _MIXES}:
        return None
    try:
        found = known or _compared(module, examples, options.repairs, may_draw=_MIXES not in codes)
        made = _loaded(found, refused.source, options)
    except Untraceable as mixing:
        more = () if _MIXES in codes else (mixing.diagnostic,)
        return replace(refused, diagnostics=(*refused.diagnostics, *more))
    except NoFunctionError:
        return None
    return replace(made, diagnostics=(*made.diagnostics, _told(errors[0], made.source.network)))


def as_function(module: Module, examples: Sequence[Example], source: Source, options: ModelOptions) -> Loaded:
    """Return a module as a function of one example.

    It must compute the same of an example alone as of a batch: in evaluation mode, and in training mode unless it
    draws random numbers there. Raises NoFunctionError, Untraceable if it mixes examples, InputError for an unknown
    loss.
    """
    return _loaded(_compared(module, examples, options.repairs, may_draw=True), source, options)


def _loaded(found: Compared, source: Source, options: ModelOptions) -> Loaded:
    network, module, size, tokens = found
    builder = GraphBuilder(source.name)
    graph = _graph(builder, network, module, size, tokens, options)
    source = replace(source, sha256=_digest(network), network=network)
    return Loaded(source, graph, tuple(builder.diagnostics))


def cause_of_each(refused: Loaded) -> Diagnostic | None:
    """Return a note that a module is read from the trace of one example, and why; None if that is no help."""
    errors = _errors(refused)
    if not {found.code for found in errors} <= {*_OF_RULES, _MIXES} - {*_OF_FUNCTIONS}:
        return None
    message = (
        "the module is read from the trace of one example, and random examples are the same alone as together; "
        f"that of a batch is refused: {errors[0].message}"
    )
    return replace(errors[0], code="LIP130", message=message, help="", severity=Severity.NOTE, path=())


def of_each(
    module: Module, examples: Sequence[Example], refused: Loaded, repairs: Repairs | None
) -> Compared | None:
    """Return a refused module if it computes the same of each example alone as of a batch; see `as_function`.

    Raises Untraceable (LIP101) if it normalises with statistics of the batch.
    """
    may_draw = _MIXES not in {found.code for found in _errors(refused)}
    try:
        return _compared(module, examples, repairs, may_draw=may_draw)
    except NoFunctionError:
        return None
    except Untraceable as mixing:
        if mixing.diagnostic.code == "LIP101":
            raise
        return None


def _compared(module: Module, examples: Sequence[Example], repairs: Repairs | None, *, may_draw: bool) -> Compared:
    with torch.random.fork_rng(devices=[]), silence():
        torch.manual_seed(_SEED)
        module = _without_statistics(module, repairs)
        network = _network(module, examples)
        size = tuple(_called(network, _copied(network.module), _batch(network, None)).shape[1:])
        tokens = tuple(_tokens(network, place) for place in range(len(network.inputs)))
        _compare(network, _in_mode(module, is_training=False), tokens, may_draw=False)
        _compare(network, _in_mode(module, is_training=True), tokens, may_draw=may_draw)
    return Compared(network, module, size, tokens)


def found_again(reference: str, shapes: Mapping[str, Shape], sha256: str) -> Network | None:
    """Return the network of `package.module:factory`; None if it is another one than that of this digest.

    Raises InputError: there is no such module (LIP020 to LIP022).
    """
    try:
        network = _network(find(reference), [Example(name, shape) for name, shape in shapes.items()])
    except NoFunctionError:
        return None
    return network if _digest(network) == sha256 else None


def _errors(refused: Loaded) -> list[Diagnostic]:
    return [found for found in refused.diagnostics if found.severity == Severity.ERROR]


def with_way(refused: Loaded) -> Loaded:
    """Name the way to train what no rule covers, where that is all that is wrong."""
    errors = _errors(refused)
    if not {found.code for found in errors} <= _OF_RULES:
        return refused
    way = "or use --bounds clip, which computes such a module one example at a time"
    found = replace(errors[-1], help=f"{errors[-1].help}; {way}" if errors[-1].help else way)
    others = (one for one in refused.diagnostics if one is not errors[-1])
    return replace(refused, diagnostics=(*others, found))


def _told(refused: Diagnostic, network: Network) -> Diagnostic:
    """Warn of what the module costs, and say which operation is the cause."""
    numbers = sum(map(prod, network.parameters.values()))
    cause = (
        "an operation may mix examples, though random ones are the same alone as together"
        if refused.code == _MIXES
        else "no rule covers it"
    )
    message = (
        f"the module is computed one example at a time, each with a gradient of {numbers:,} numbers of its own, "
        f"as {cause}: {refused.message}"
    )
    way = refused.help if refused.code != "LIP105" else ""  # this says to clip
    help_line = f"for less time and memory: {way}" if way else ""
    return replace(refused, code="LIP129", message=message, help=help_line, severity=Severity.WARNING, path=())


# What the module is a function of


def _network(module: Module, examples: Sequence[Example]) -> Network:
    order = list(inspect.signature(module.forward).parameters)
    if all(example.name in order for example in examples):
        examples = sorted(examples, key=lambda example: order.index(example.name))
    taken = examples if failure_of(module, examples) is None else as_tokens(module, examples)
    if failure_of(module, taken) is not None or any(one.kind and one.kind.is_complex for one in taken):
        raise NoFunctionError
    trained = {name: one for name, one in module.named_parameters() if one.requires_grad and one.numel()}
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise NoFunctionError
    if not trained:
        raise NoFunctionError
    try:
        twin = copy.deepcopy(module)
    except Exception:
        raise NoFunctionError from None
    return Network(
        twin.requires_grad_(requires_grad=False),
        tuple(taken),
        {name: tuple(_in_pairs(one).shape) for name, one in trained.items()},
    )


def _in_pairs(parameter: Tensor) -> Tensor:
    """Return the values of a parameter, complex ones with a last axis of 2."""
    values = parameter.detach()
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _without_statistics(module: Module, repairs: Repairs | None) -> Module:
    """Return the module, or a copy with a norm of groups of channels in the place of each norm of the batch.

    Raises Untraceable (LIP101) where nobody asked for that.
    """
    norms = {name: part for name, part in module.named_modules() if isinstance(part, _BatchNorm)}
    mixing = [name for name, part in norms.items() if part.training or part.running_mean is None]
    if not mixing:
        return module
    if repairs is None or repairs.batch_norm != "group_norm" or "" in mixing:
        raise untraceable("LIP101", f"`{mixing[0]}` normalises with statistics of the batch", "", None)
    twin = copy.deepcopy(module)
    for name in mixing:
        parent, _, own = name.rpartition(".")
        setattr(twin.get_submodule(parent), own, _GroupNorm(norms[name]))
        repairs.note(name, "batch norm -> group_norm of the same weights")
    return twin


class _GroupNorm(Module):
    """The norm of groups of channels of one example that `fix` puts in the place of a norm of the batch."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = copy.deepcopy(norm.weight), copy.deepcopy(norm.bias), norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, groups_of(x.shape[1:]), self.weight, self.bias, self.eps)


def _batch(network: Network, tokens: Sequence[int] | None) -> list[Tensor]:
    """Return random examples, an input each: with tokens below these; or ones."""
    made, device = [], next(network.module.parameters()).device
    for place, one in enumerate(network.inputs):
        shape, kind = (_EXAMPLES, *one.shape), one.kind or real(network.module)
        if kind.is_floating_point:
            made.append(torch.randn(shape).to(device, kind))
        elif tokens is None:
            made.append(torch.ones(shape, dtype=kind, device=device))
        else:
            made.append(torch.randint(tokens[place], shape).to(device, kind))
    return made


def _tokens(network: Network, place: int) -> int:
    """Return of how many different whole numbers an input may be; 0 of real numbers.

    The module says it by failing on others: sizes of its tables are tried, the largest first.
    """
    kind = network.inputs[place].kind
    if kind is None or kind.is_floating_point:
        return 0
    if kind == torch.bool:
        return 2
    stored = (*network.module.parameters(), *network.module.buffers())
    sizes = {size + more for tensor in stored for size in tensor.shape for more in (0, 1)}
    given = _batch(network, None)
    for size in sorted({_MANY_TOKENS, *sizes, *network.inputs[place].shape, 2, 1}, reverse=True):
        given[place] = torch.full_like(given[place], size - 1)
        try:
            _called(network, _copied(network.module), given)
        except Exception:
            continue
        return size
    raise NoFunctionError


def _called(
    network: Network, module: Module, rows: Sequence[Tensor], trained: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Return the outputs of examples, of a copy of the module or with other parameters in their places."""
    rows = [row.clone() for row in rows]  # which the module may write into
    named = {one.name: row for one, row in zip(network.inputs, rows, strict=True) if one.name}
    args = tuple(row for one, row in zip(network.inputs, rows, strict=True) if not one.name)
    try:
        output = module(*args, **named) if trained is None else functional_call(module, dict(trained), args, named)
    except Exception:
        raise NoFunctionError from None
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.shape[:1] != rows[0].shape[:1]:
        raise NoFunctionError
    if isinstance(output, FakeTensor):  # from a cache that the module has filled while it was traced
        raise NoFunctionError
    return output


# What is compared


def _compare(network: Network, module: Module, tokens: Sequence[int], *, may_draw: bool) -> None:
    """Raise Untraceable (LIP108) if examples have other outputs or gradients together than alone, or than before.

    In training mode nothing is dropped, and random numbers are their means. Examples are not compared with
    themselves alone if the module draws others, and may do so.
    """
    seen = list[tuple[list[Tensor], list[Tensor]]]()
    for rows in _rows_that_work(network, module, tokens):  # which are random ones, and no means
        with means(of_all=True) if module.training else nullcontext():
            seen.append((rows, _seeded(network, module, [rows])))
            if _compare_rows(network, module, *seen[-1], may_draw=may_draw):
                _compare_sizes(network, module, rows)
    rows, whole = seen[0]
    with means(of_all=True) if module.training else nullcontext():
        if not _alike(whole, _seeded(network, module, [rows])):
            raise _stateful()


def _compare_rows(
    network: Network, module: Module, rows: Sequence[Tensor], whole: Sequence[Tensor], *, may_draw: bool
) -> bool:
    """Compare outputs and gradients of one batch; return whether its examples could be compared with themselves.

    Args:
        whole: outputs and gradients of this batch, with the seed that all batches get.
    """
    if not _alike(whole, _seeded(network, module, [rows])):
        raise _stateful()
    if not _alike(whole, _seeded(network, module, [rows], with_copies=True)):
        raise _mixing()
    if not _alike(whole, _seeded(network, module, [rows], seed=_SEED + 1)):
        if may_draw:
            return False
        raise NoFunctionError
    parts = [[row[i : i + 1] for row in rows] for i in range(len(rows[0]))]
    if not _alike(whole, _seeded(network, module, parts, with_copies=True)):
        raise _mixing()
    return True


def _compare_sizes(network: Network, module: Module, rows: Sequence[Tensor]) -> None:
    """Compare the outputs of batches of several sizes, which are the same examples again and again."""
    entries = sum(map(prod, network.parameters.values()))
    with torch.no_grad():
        known = _called(network, _copied(module), rows)
        for size in (size for size in _SIZES if size * entries <= _MOST_ENTRIES):
            places = torch.arange(size, device=known.device) % len(known)
            try:
                found = _called(network, _copied(module), [row[places] for row in rows])
            except NoFunctionError:
                raise _mixing() from None
            if not _alike([known[places]], [found]):
                raise _mixing()


def _mixing() -> Untraceable:
    message = "an example has another output, or another gradient, in a batch than alone"
    help_line = (
        "let `forward` compute each example by itself, from parameters that are attributes of the module "
        "and its parts"
    )
    return untraceable("LIP108", message, help_line, None)


def _stateful() -> Untraceable:
    help_line = (
        "keep nothing of a call in class attributes, globals, closures or default arguments, and draw random "
        "numbers without generators of your own"
    )
    return untraceable("LIP108", _STATE, help_line, None)


def _seeded(
    network: Network,
    module: Module,
    batches: Sequence[Sequence[Tensor]],
    *,
    with_copies: bool = False,
    seed: int = _SEED,
) -> list[Tensor]:
    """Return the outputs and gradients of batches, with the random numbers of a seed."""
    with torch.random.fork_rng(devices=[]), _python_seeded(seed):
        torch.manual_seed(seed)
        return _outputs_and_gradients(network, module, batches, with_copies=with_copies)


@contextmanager
def _python_seeded(seed: int) -> Iterator[None]:
    """Seed the generators of Python and numpy meanwhile."""
    before, of_numpy = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed)
        yield
    finally:
        random.setstate(before)
        np.random.set_state(of_numpy)


def _in_mode(module: Module, *, is_training: bool) -> Module:
    """Return a copy of the module in evaluation mode, or as it is, but for its dropout layers."""
    twin = copy.deepcopy(module)
    for part in twin.modules():
        part.training = is_training and part.training and not isinstance(part, _DropoutNd)
    return twin


def _rows_that_work(network: Network, module: Module, tokens: Sequence[int]) -> Iterator[list[Tensor]]:
    """Yield batches that the module takes: random ones, or ones; and more examples, of large numbers and of texts
    that end one after another.
    """
    usual = _batch(network, tokens)
    yield usual if _takes(network, module, usual) else _batch(network, None)
    more = [torch.cat([_SPREAD * row] * 2 + [row]) if row.is_floating_point() else _ragged(row) for row in usual]
    if _takes(network, module, more):
        yield more


def _takes(network: Network, module: Module, rows: Sequence[Tensor]) -> bool:
    try:
        _called(network, _copied(module), rows)
    except NoFunctionError:  # such as lengths of 0
        return False
    return True


def _ragged(row: Tensor) -> Tensor:
    """Return three times as many examples of whole numbers, each with more zeros at its end than the last."""
    found = torch.cat([row] * 3)
    for place in range(len(found) if found.dim() > 1 else 0):
        found[place, found.shape[1] - place * found.shape[1] // len(found) :] = 0
    return found


def _outputs_and_gradients(
    network: Network, module: Module, batches: Sequence[Sequence[Tensor]], *, with_copies: bool
) -> list[Tensor]:
    """Return the outputs of batches, and the gradient of their sum with fixed weights, over all of the batches.

    Each batch passes a copy of the module; with copies of the parameters in their places, and zeros where the
    module itself keeps them.
    """
    trained: dict[str, Tensor] = {
        name: one for name, one in module.named_parameters() if name in network.parameters
    }
    if with_copies:
        trained = {name: one.detach().clone().requires_grad_() for name, one in trained.items()}
        module = copy.deepcopy(module).requires_grad_(requires_grad=False)
        with torch.no_grad():
            for name in trained:
                module.get_parameter(name).zero_()
    outputs = torch.cat(
        [_called(network, _copied(module), rows, trained if with_copies else None) for rows in batches]
    )
    weights = torch.linspace(0.5, 1.5, outputs.numel()).reshape(outputs.shape).to(outputs)
    total = (outputs * weights).sum()
    try:
        found = torch.autograd.grad(total, list(trained.values()), allow_unused=True, materialize_grads=True)
    except Exception:
        raise NoFunctionError from None
    return [outputs.detach(), *found]


def _copied(module: Module) -> Module:
    """Return a copy of the module with the same parameters, which gradients are taken of."""
    return copy.deepcopy(module, {id(one): one for one in module.parameters()})


def written(loaded: Loaded) -> list[str]:
    """Return the names of the buffers that a network writes into when it is called."""
    network: Network = loaded.source.network
    twin = copy.deepcopy(network.module)
    _called(network, twin, _batch(network, None))
    before = dict(network.module.named_buffers())
    return [name for name, one in twin.named_buffers() if not torch.equal(one, before[name])]


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether tensors agree: each up to a share of its largest number, or to the rounding of the others."""
    if [x.shape for x in one] != [x.shape for x in other]:
        return False
    sizes = [float(x.abs().nan_to_num(0, 0, 0).amax()) if x.numel() else 0.0 for x in map(_in_pairs, one)]
    return all(
        torch.allclose(x, y, rtol=0, atol=_share(x) * max(size, _ROUNDED * max(sizes)), equal_nan=True)
        for x, y, size in zip(one, other, sizes, strict=True)
    )


def _share(x: Tensor) -> float:
    return max(_AGREES, _ROUNDINGS * torch.finfo(x.dtype).eps)


# The graph


def _graph(
    builder: GraphBuilder,
    network: Network,
    module: Module,
    size: Shape,
    tokens: Sequence[int],
    options: ModelOptions,
) -> Graph | None:
    """Return the graph of a network, or None with a diagnostic where its loss or its size is refused."""
    order = [*inspect.signature(module.forward).parameters, *["x"] * len(network.inputs)]  # of any number
    names = [one.name or order[place] for place, one in enumerate(network.inputs)]
    is_whole = all(tokens)
    found = [
        Input(identifier(name), one.shape, FIRST, None, is_whole)
        for name, one in zip(names, network.inputs, strict=True)
    ]
    given = [value for value in declare(builder, found, None, None).values() if isinstance(value, Value)]
    stored = dict(module.named_parameters())
    copies = [_copy(builder, given[0], name, stored[name]) for name in network.parameters]
    attributes = OwnNetwork(size, tuple(tokens))
    output = builder.add(OWN_NETWORK, attributes, [*given, *copies], name="own_network_output")
    loss = None if options.loss is None else options.loss_of(output.shape, options.loss)
    return builder.finish(output, loss)


def _copy(builder: GraphBuilder, example: Value, name: str, parameter: Tensor) -> Value:
    """Add the copies of a parameter that examples have: zeros plus a bias. A single number has the shape [1]."""
    values = _in_pairs(parameter).float().cpu().numpy()
    array = values.reshape(values.shape or (1,))
    own = identifier(name)
    start = builder.add(ZEROS, Zeros(array.shape), [example], name=f"{own}_zeros")
    choice = ParameterChoice(FREE, initial=array)
    return builder.add(BIAS, BiasShape(array.shape), [start], name=own, parameters={"bias": choice})


def _digest(network: Network) -> str:
    """Return a sha256 of the parts of a network, and of the numbers that are not trained."""
    found = hashlib.sha256(repr(network.module).encode())
    for name, tensor in (*network.module.named_parameters(), *network.module.named_buffers()):
        found.update(f"{name} {list(tensor.shape)}".encode())
        if name not in network.parameters:
            found.update(_in_pairs(tensor).cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
