"""ExportedProgram -> ONNX model in memory, with every weight under the name that the module has for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Any

import torch
from onnx import ModelProto, helper, numpy_helper
from torch.export import ExportedProgram
from torch.fx import Node

from lipcompile.diagnostics import Diagnostic, Location
from lipcompile.frontends.onnx.node import scope_of, traced_line
from lipcompile.frontends.onnx.refused import DRAWS
from lipcompile.frontends.silence import silence
from lipcompile.frontends.torch.find import summary
from lipcompile.frontends.torch.rerun.complex_pairs import is_view
from lipcompile.frontends.torch.untraceable import Untraceable, untraceable
from lipcompile.ops.merge import torch_read as merge
from lipcompile.ops.normalisation import torch_read as normalisation
from lipcompile.ops.pointwise import torch_read as pointwise
from lipcompile.ops.pool import torch_read as pooling
from lipcompile.ops.recurrent import torch_read as rnn
from lipcompile.ops.shape import torch_read as shape

_OPERATOR = re.compile(r"OpOverload\(op='([\w.]+)'")
_LARGEST_FOLDED = 2**24
# What to write in the place of operators that nothing here computes.
_TRIANGLES = "train factors of the matrix, L and U with the diagonal s, whose log |det| is s.abs().log().sum()"
_INSTEAD = dict.fromkeys(("aten._linalg_det", "aten._linalg_slogdet", "aten.logdet"), _TRIANGLES)
# What draws anew each time, also from constants: folded, one draw would stand in the model for ever.
_DRAWING = frozenset((*DRAWS, "Dropout"))
# Batch normalisations of torch, by the position of the argument that says whether statistics are the batch's own.
_TRAINING = {"aten.batch_norm.default": 5, "aten.cudnn_batch_norm.default": 5, "aten.native_batch_norm.default": 5}


def translated(program: ExportedProgram) -> ModelProto:
    """Return the ONNX model. Equal weights stay apart, and keep their names: torch's own optimiser joins them.

    Raises Untraceable.
    """
    try:
        return _translated(program)
    except Untraceable as refused:
        if refused.diagnostic.code != "LIP121" or not _mended(program):
            raise
    return _translated(program)


def _mended(program: ExportedProgram) -> bool:
    """Write otherwise what torch.onnx is known to fail on; all numbers stay. Return whether there is any.

    It drops what makes a tensor contiguous where it believes that it is, decomposes attention to one that puts out
    another layout, and then says that the view behind it is none: copies stay. It finds no kind of numbers for
    c - x of a real number c and whole numbers x: these become real before. Of the limits of a clamp, it takes
    two of one kind: both become real.
    """
    aten, graph = torch.ops.aten, program.graph
    in_order = {"memory_format": torch.contiguous_format}
    found = [*graph.nodes]
    copied = [node for node in found if node.target == aten.contiguous.default]
    attended = [node for node in found if node.target == aten.scaled_dot_product_attention.default]
    subtracted = [node for node in found if node.target == aten.rsub.Scalar and _is_whole(node.args[0])]
    limited = [node for node in found if node.target == aten.clamp.default and not _is_whole(node.args[0])]
    for node in copied:
        node.target, node.kwargs = aten.clone.default, in_order
    for node in attended:
        with graph.inserting_after(node):
            copy = graph.call_function(aten.clone.default, (node,), in_order)
        node.replace_all_uses_with(copy, lambda user, own=copy: user is not own and user.op != "output")
        copy.meta = dict(node.meta)
    for node in subtracted:
        (whole, number, *rest), kind = node.args, node.meta["val"].dtype
        with graph.inserting_before(node):
            real = graph.call_function(aten._to_copy.default, (whole,), {"dtype": kind})
        real.meta = {**node.meta, "val": whole.meta["val"].to(kind)}
        node.args = (real, number, *rest)
    for node in limited:
        operand, *limits = node.args
        node.args = (operand, *(None if limit is None else float(limit) for limit in limits))
    return bool(copied or attended or subtracted or limited)


def _is_whole(node: Node) -> bool:
    """Whether a traced operation puts out whole numbers or truths."""
    return not node.meta["val"].is_floating_point()


def _look_up(program: ExportedProgram) -> None:
    """Write rows of a parameter at tokens, `table[tokens]`, as those of an embedding are."""
    aten, signature = torch.ops.aten, program.graph_signature
    for node in program.graph.find_nodes(op="call_function", target=aten.index.Tensor):
        table, places = node.args
        is_table = isinstance(table, Node) and table.name in signature.inputs_to_parameters
        if is_table and table.meta["val"].dim() == 2 and len(places) == 1 and _are_tokens(places[0], signature):
            node.target, node.args = aten.embedding.default, (table, places[0])


def _are_tokens(node: Node, signature: Any) -> bool:
    """Whether a traced tensor consists of whole numbers of an input, as they are."""
    while node.op == "call_function" and is_view(node) and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    kind = node.meta["val"].dtype
    return node.name in signature.user_inputs and not (kind.is_floating_point or kind == torch.bool)


def _translated(program: ExportedProgram) -> ModelProto:
    from onnxscript import optimizer

    _look_up(program)
    for node in filter(rnn.projects, program.graph.nodes):
        message = "an LSTM whose states are projected is not yet supported"
        at = traced_line(str(node.meta.get("stack_trace")))
        raise untraceable("LIP110", message, "leave proj_size out", at)
    named = program.state_dict.keys()
    if clashing := _clashing(program):
        message = f"`{clashing}` is an argument of `forward` and a parameter or buffer: torch.onnx mixes them up"
        raise untraceable("LIP121", message, "give one of them another name", None)
    table = {
        **rnn.translations(),
        **normalisation.translations(),
        **shape.translations(),
        **merge.translations(),
        **pointwise.translations(),
    }
    if any(map(pooling.is_unwritten, program.graph.nodes)):
        table |= pooling.translations()
    try:
        with silence():
            made = torch.onnx.export(
                program, dynamo=True, optimize=False, verbose=False, custom_translation_table=table
            )
            assert made is not None
            optimizer.fold_constants(
                made.model,
                onnx_shape_inference=True,
                input_size_limit=_LARGEST_FOLDED,
                output_size_limit=_LARGEST_FOLDED,
                should_fold=lambda node: None if _may_fold(node, named) else False,
            )
            optimizer.remove_unused_nodes(made.model)
            model: ModelProto = made.model_proto
    except Exception as error:
        raise _untranslated(program, error) from None
    _drop_made_biases(model, named)
    _restore_training(model, program)
    return model


def _clashing(program: ExportedProgram) -> str:
    """Return the name of an input that something stored, and read, has as well; empty if there is none."""
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    read = {stored[node.name] for node in program.graph.nodes if node.name in stored and node.users}
    return next((str(name) for name in signature.user_inputs if name in read), "")


def _may_fold(node: Any, named: Collection[str]) -> bool:
    """Whether an operator may be computed once and for all, if it has constants only: it is always the same."""
    return node.op_type not in _DRAWING and not any(name in named for name in _names(node))


def _names(node: Any) -> Iterator[str]:
    return (value.name for value in node.inputs if value is not None)


def _drop_made_biases(model: ModelProto, named: Collection[str]) -> None:
    """Take away the zeros that the exporter adds to a convolution without a bias: they are no weight."""
    made = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in named}
    for node in model.graph.node:
        has_bias = node.op_type in ("Conv", "ConvTranspose") and len(node.input) > 2
        bias = made.get(node.input[2]) if has_bias else None
        if bias is not None and not numpy_helper.to_array(bias).any():
            del node.input[2:]


def _restore_training(model: ModelProto, program: ExportedProgram) -> None:
    """Let batch normalisations say again that they are in training mode, which torch.onnx forgets.

    Raises Untraceable where one cannot be found again.
    """
    of_example = _reached(program)
    trained = [_module_of(node) for node in program.graph.nodes if _normalises_batch(node) and node in of_example]
    nodes = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    changed = [node for node in nodes if scope_of(node).module in trained]
    for node in changed:
        kept = [attribute for attribute in node.attribute if attribute.name != "training_mode"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("training_mode", 1)])
    if len(changed) < len(trained):
        message = "batch normalisation in training mode couples the examples of a batch"
        raise untraceable("LIP101", message, "", None)


def _reached(program: ExportedProgram) -> set[Node]:
    """Return the operations that depend on an input: others normalise weights, as weight standardisation does."""
    inputs = set(program.graph_signature.user_inputs)
    found: set[Node] = set()
    for node in program.graph.nodes:
        if node.name in inputs or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _normalises_batch(node: Node) -> bool:
    place = _TRAINING.get(str(node.target))
    return place is not None and (len(node.args) <= place or node.args[place] is not False)


def _module_of(node: Node) -> str:
    """Return the qualified name of the module that a traced operation stands in."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]) if stack else ""


def line_of(program: ExportedProgram, name: str) -> Location | None:
    """Return the line of the user's code that a traced operation comes from, if it is known."""
    stacks = (str(node.meta.get("stack_trace")) for node in program.graph.nodes if node.name == name)
    return next(map(traced_line, stacks), None)


def _untranslated(program: ExportedProgram, error: Exception) -> Untraceable:
    """Name the operation that has no ONNX operators, if torch does."""
    told = list(_chain(error))
    found = next((match for one in told if (match := _OPERATOR.search(str(one)))), None)
    if found is None:
        message = f"torch.onnx cannot translate the module: {summary(told[-1])}"
        help_line = "leave the operation out, or write it with others"
        if "nonexistent attribute" in message:
            help_line = "rename that submodule: torch.fx has its own attribute of this name, as `code` or `graph`"
        return untraceable("LIP121", message, help_line, None)
    name = found[1]
    calls = [node for node in program.graph.nodes if _is_call(node.target, name)]
    message = f"unsupported op {name}: ONNX has no operator for it"
    help_line = _INSTEAD.get(name, "replace it, or leave it out")
    if calls and name not in _INSTEAD and _reached(program).isdisjoint(calls):
        help_line = "keep the weight that it computes: torch.nn.utils.parametrize.remove_parametrizations"
    at = traced_line(str(calls[0].meta.get("stack_trace"))) if calls else None
    return Untraceable(Diagnostic("LIP100", message, help_line, op=name, location=at))


def _is_call(target: Any, operation: str) -> bool:
    return f"{target}.".startswith(f"{operation}.")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def digest(model: ModelProto) -> str:
    """Return a sha256 of what a model computes: of its nodes and tensors, not of where its code lies."""
    found = hashlib.sha256()
    for node in model.graph.node:
        bare = type(node)()
        bare.CopyFrom(node)
        del bare.metadata_props[:]
        found.update(bare.SerializeToString(deterministic=True))
    for tensor in model.graph.initializer:
        found.update(tensor.SerializeToString(deterministic=True))
    return found.hexdigest()
