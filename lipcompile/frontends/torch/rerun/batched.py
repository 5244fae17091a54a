"""The trace of one example, run on batches: a module that computes each example as it does alone.

Code that asks for the size of the batch, or puts its examples among other axes, has a fixed graph for a batch of
one. The operations of this graph are run once more, with an axis of examples in front, and traced again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tag, Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Interpreter, Node
from torch.fx.traceback import preserve_node_meta
from torch.nn import Module
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from lipcompile.frontends.onnx.node import traced_line
from lipcompile.frontends.torch.draws import draws
from lipcompile.frontends.torch.kinds import with_forward
from lipcompile.frontends.torch.rerun.complex_pairs import arguments, is_view
from lipcompile.frontends.torch.tracing import Example, evaluating, traced
from lipcompile.frontends.torch.untraceable import Untraceable, untraceable

Given = Mapping[str, Any]
# Operators that take any axes in front of their own, that of examples among them: the operand that has it.
_ANY_AXES = {
    **dict.fromkeys(("dropout", "layer_norm", "linear", "rms_norm"), "input"),
    **dict.fromkeys(("_to_copy", "alias", "clone", "contiguous", "detach", "empty_like", "to"), "self"),
    **dict.fromkeys(("bernoulli", "bernoulli_", "normal_", "rand_like", "randn_like", "uniform_"), "self"),
    "embedding": "indices",
}
# Operators that take one axis of examples in front, and any axes behind it, or one more than their name says.
_ONE_AXIS = """
    batch_norm feature_dropout group_norm instance_norm pad
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d max_pool1d max_pool2d
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
"""
# Operators along axes that they name, of which there is one more in front; and those that name all sizes.
_ALONG = """
    amax amin argmax argmin cat chunk cumsum flatten flip glu log_softmax logsumexp max mean min movedim narrow
    permute select slice softmax split split_with_sizes squeeze stack std sum transpose unbind unflatten unsqueeze
    var
"""
_AXES = ("destination", "dim", "dim0", "dim1", "dims", "end_dim", "source", "start_dim")
_SIZES = {"_unsafe_view": "size", "expand": "size", "new_empty": "size", "reshape": "shape", "view": "size"}
# Operators of which the numbers do not depend on an example.
_FILLED = ("full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like")
_CELLS = ("gru", "lstm", "rnn_relu", "rnn_tanh")


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a tensor of a batch of one is for each example: [B, …]."""

    tensor: Tensor


def batched(module: Module, examples: Sequence[Example], program: ExportedProgram) -> Module:
    """Return a module of the same parts and weights that computes examples as `module` computes each alone.

    program: the trace of a batch of one. Where random numbers are drawn, there is one of each mode. Raises
    Untraceable; InputError (LIP023).
    """
    is_training = module.training
    programs = {is_training: program, not is_training: program}
    if is_training and any(map(draws, program.graph.nodes)):
        with evaluating(module):
            programs[False], _ = traced(module, examples, of_one=True)

    @wraps(type(module).forward)
    def forward(self: Module, *args: Any, **kwargs: Any) -> Any:
        return _run(programs[self.training], self, args, kwargs)

    return with_forward(module, forward)


def _run(program: ExportedProgram, module: Module, args: Sequence[Tensor], kwargs: Mapping[str, Tensor]) -> Any:
    """Run the trace of a batch of one on a batch."""
    spec = program.call_spec
    given = iter([*args, *(kwargs[name] for name in spec.in_spec.children_specs[1].context)])
    operands: list[Any] = []
    for one in program.graph_signature.input_specs:
        if one.kind is InputKind.USER_INPUT:
            operands.append(_Rows(next(given).unsqueeze(1)))
        elif one.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            home, _, name = str(one.target).rpartition(".")
            operands.append(getattr(module.get_submodule(home), name))
        else:
            operands.append(program.constants[str(one.target)])
    count = next(one.tensor.shape[0] for one in operands if isinstance(one, _Rows))
    with preserve_node_meta():
        outputs = _Batch(program.graph_module, count).run(*operands)
    return tree_unflatten([_without_axis(one) for one in outputs], spec.out_spec)


def _without_axis(output: Any) -> Tensor:
    if not isinstance(output, _Rows) or output.tensor.dim() < 2 or output.tensor.shape[1] != 1:
        raise _unsupported("the output has no batch axis in front", None)
    return output.tensor.squeeze(1)


class _Batch(Interpreter):
    """Runs the operations of one example on the rows of all. count: of examples."""

    def __init__(self, module: Any, count: int) -> None:
        super().__init__(module)
        self._count, self._nodes = count, [*module.graph.nodes]
        self._written = frozenset[Node]()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        own = (node for node, given in zip(self._nodes, args, strict=False) if isinstance(given, _Rows))
        self._written = _overwritten(self._nodes, own)
        return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if "wrap_with_set_grad_enabled" in str(n.target):
            enabled, inner, *operands = args
            with torch.set_grad_enabled(enabled):
                return _Batch(inner, self._count).run(*operands)
        reads = any(isinstance(leaf, _Rows) for leaf in tree_leaves((args, kwargs)))
        if (
            n.op != "call_function"
            or n.target is operator.getitem
            or not (reads or draws(n) or n in self._written)
        ):
            return super().run_node(n)
        if str(n.target).startswith("aten._assert"):
            return None
        if not isinstance(n.target, OpOverload):
            raise _unsupported(f"`{n.target}` has no rule for batches", n)
        with self._set_current_node(n):
            given = arguments(n.target, args, kwargs)
            made = self._of_rows(n, n.target, given) if reads else self._of_constants(n, n.target, given)
            if n in self._written:
                made = tree_map_only(Tensor, lambda one: _Rows(self._rows(one).clone()), made)
        return made

    def _of_constants(self, node: Node, op: OpOverload, given: Given) -> Any:
        """Draw for each example what one draws."""
        if not draws(node):
            return op(**given)
        name = "size" if "size" in given else _ANY_AXES.get(_name(node), "")
        if not name:
            raise _unsupported(f"`{_name(node)}` draws the same for all examples", node)
        of_all = [self._count, *given[name]] if name == "size" else self._rows(given[name])
        return _Rows(op(**{**given, name: of_all}))

    def _of_rows(self, node: Node, op: OpOverload, given: Given) -> Any:
        name = _name(node)
        rows = [key for key, value in given.items() if any(isinstance(x, _Rows) for x in tree_leaves(value))]
        one = rows[0] if len(rows) == 1 else ""
        if name in _FILLED or (name == "type_as" and rows == ["other"]):
            return op(**tree_map_only(_Rows, _without_numbers, {**given}))
        if name in _CELLS and op._overloadname == "input" and rows in (["input"], ["input", "hx"]):
            return _as_rows(self._cell(op, given, node))
        if one and one == _ANY_AXES.get(name):
            return _as_rows(op(**{**given, one: given[one].tensor}))
        if one in ("input", "self") and name in _ONE_AXIS.split():
            is_batch = given[one].tensor.dim() == 2 + (int(name[-2]) if name[-2:-1].isdigit() else 0)
            return _as_rows(op(**{**given, one: given[one].tensor})) if is_batch else _stacked(op, given, rows)
        if name == "scaled_dot_product_attention" and len({given[key].tensor.shape[1] for key in rows}) == 1:
            return _stacked(op, given, rows)
        if Tag.pointwise in op.tags or name == "copy_":
            return _as_rows(_entrywise(op, given))
        if one and name in _ALONG.split() and (axes := _named_axes(given)):
            axes |= {"dims": [0, *axes["dims"]]} if name == "permute" else {}  # it names all of them
            return _as_rows(op(**{**given, **axes, one: tree_map_only((Tensor, _Rows), self._rows, given[one])}))
        if one == "self" and name in _SIZES:
            sizes = given[_SIZES[name]]
            widened = _with_axes(given[one].tensor, len(sizes) + 1 if name == "expand" else 0)
            return _as_rows(op(**{**given, one: widened, _SIZES[name]: [self._count, *sizes]}))
        return _each(op, given, node)

    def _rows(self, one: Tensor | _Rows) -> Tensor:
        return one.tensor if isinstance(one, _Rows) else one.expand(self._count, *one.shape)

    def _cell(self, op: OpOverload, given: Given, node: Node) -> Any:
        """Run a recurrent layer on sequences [B, k, T, C], or [B, T, k, C], from states [B, layers, k, H].

        Nothing else: the operator reads beyond what it is given where sizes do not fit.
        """
        rows, place = given["input"].tensor, 1 if given["batch_first"] else 2
        states = [self._rows(one) for one in tree_leaves(given["hx"], is_leaf=lambda one: isinstance(one, _Rows))]
        if any(one.dim() != 4 for one in (rows, *states)) or any(
            one.shape[2] != rows.shape[place] for one in states
        ):
            raise _unsupported("the states of a recurrent layer are not those of its sequences", node)
        sizes = (self._count, rows.shape[place])
        before = [one.transpose(0, 1).flatten(1, 2) for one in states]
        flat = rows.flatten(0, 1) if place == 1 else rows.transpose(0, 1).flatten(1, 2)
        hx = before if isinstance(given["hx"], list | tuple) else before[0]
        output, *last = op(**{**given, "input": flat, "hx": hx})
        back = output.unflatten(0, sizes) if place == 1 else output.unflatten(1, sizes).transpose(0, 1)
        return (back, *(one.unflatten(1, sizes).transpose(0, 1) for one in last))


def _without_numbers(rows: _Rows) -> Tensor:
    """Return a tensor as one example has it, which nothing reads."""
    return torch.empty(rows.tensor.shape[1:], dtype=rows.tensor.dtype, device=rows.tensor.device)


def _stacked(op: OpOverload, given: Given, names: Sequence[str]) -> _Rows:
    """Put the first axis of one example beside that of examples meanwhile."""
    first = given[names[0]].tensor
    made = op(**{**given, **{name: given[name].tensor.flatten(0, 1) for name in names}})
    return _Rows(made.unflatten(0, tuple(first.shape[:2])))


def _entrywise(op: OpOverload, given: Given) -> Any:
    """Run an operation on entries that stand at the same place, counted from the last one."""
    tensors = [leaf for leaf in tree_leaves(dict(given)) if isinstance(leaf, Tensor | _Rows)]
    rank = max(one.tensor.dim() if isinstance(one, _Rows) else one.dim() + 1 for one in tensors)
    return op(**tree_map_only(_Rows, lambda one: _with_axes(one.tensor, rank), {**given}))


def _with_axes(rows: Tensor, rank: int) -> Tensor:
    """Return rows of at least this many axes: new ones stand behind that of examples."""
    return rows[(slice(None), *(None,) * (rank - rows.dim()))] if rank > rows.dim() else rows


def _named_axes(given: Given) -> dict[str, Any]:
    """Return the axes that are named, counted with that of examples; none if one is left out."""
    axes = {key: value for key, value in given.items() if key in _AXES}
    if any(value is None or value == [] for value in axes.values()):
        return {}
    return {key: tree_map_only(int, lambda axis: axis + (axis >= 0), value) for key, value in axes.items()}


def _each(op: OpOverload, given: Given, node: Node) -> Any:
    """Run an operation on the rows of each example."""
    leaves, spec = tree_flatten({**given})

    def of_one(*rows: Tensor) -> Any:
        own = iter(rows)
        return op(**tree_unflatten([next(own) if isinstance(leaf, _Rows) else leaf for leaf in leaves], spec))

    try:
        return _as_rows(torch.vmap(of_one)(*(leaf.tensor for leaf in leaves if isinstance(leaf, _Rows))))
    except RuntimeError as error:
        raise _unsupported(f"torch.vmap: {str(error).splitlines()[0]}", node) from None


def _as_rows(made: Any) -> Any:
    return tree_map_only(Tensor, _Rows, made)


def _name(node: Node) -> str:
    return str(node.target).split(".")[1]


def _overwritten(nodes: Sequence[Node], own: Iterable[Node]) -> frozenset[Node]:
    """Return the results that are written over, for each example otherwise. own: inputs that each example has."""
    written, known, own = frozenset[Node](), -1, {*own}
    while known < len(own):
        known = len(own)
        own.update(node for node in nodes if draws(node) or not own.isdisjoint(node.all_input_nodes))
        written = frozenset(home for node in own if (home := _home(node)) is not None)
        own |= written
    return written


def _home(node: Node) -> Node | None:
    """Return the result that an operation writes over, itself or through views; None if it writes over none."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable or not node.args or _name(node) == "detach_":
        return None
    written: Any = node.args[0]
    while isinstance(written, Node) and is_view(written) and written.args:
        written = written.args[0]
    return written if isinstance(written, Node) and written.op == "call_function" else None


def _unsupported(message: str, node: Node | None) -> Untraceable:
    place = None if node is None else traced_line(str(node.meta.get("stack_trace")))
    return untraceable("LIP121", message, "", place)
