"""The ONNX front end: a file becomes a graph, all that is wrong with it is reported at once."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

from onnx import GraphProto, ModelProto, numpy_helper

from lipcompile import limits
from lipcompile.core.derivation import Source
from lipcompile.core.graph import Graph, GraphBuilder, LossUse, Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Diagnostic, Location, Refusal, Severity, input_error
from lipcompile.frontends.onnx.constants import of_every_example
from lipcompile.frontends.onnx.context import Blamed, Context, as_tensor, is_merged
from lipcompile.frontends.onnx.exported import exported
from lipcompile.frontends.onnx.file import read as file
from lipcompile.frontends.onnx.file.session import opened
from lipcompile.frontends.onnx.file.structure import reaching
from lipcompile.frontends.onnx.inputs import Source as InputSource
from lipcompile.frontends.onnx.inputs import declare, sources
from lipcompile.frontends.onnx.layout import Placed, unplaced
from lipcompile.frontends.onnx.node import OnnxNode, describe, module_of, named
from lipcompile.frontends.onnx.nodes import FOLDED_ALONE, Visitor
from lipcompile.frontends.onnx.parameters import Parameters
from lipcompile.frontends.onnx.sizes import checked
from lipcompile.frontends.onnx.tensors import rewritten
from lipcompile.frontends.onnx.values import Item, Known
from lipcompile.frontends.options import Loaded, ModelOptions, parse_number
from lipcompile.numbers import Scalar

# Imports of one model: what follows a refused node may show more.
_MOST_READINGS = 4
# Entries of parameters of which each example has a copy, where a weight could be made of them instead: 16 MB.
_MOST_ENTRIES = 2**22
# What trains a parameter that became a constant.
_ONE_EACH = "use a parameter with a number for each channel, if it is to be trained"
_BY_CLIP = "use --bounds clip, under which it is trained"
_OTHERWISE = "write what is done with it by sums, products, exp and log"


def load(path: Path, options: ModelOptions) -> Loaded:
    """Read an ONNX model; raises InputError if the file is not one (LIP001 to LIP007).

    What it cannot vouch for becomes diagnostics, and the graph is None.
    """
    model, digest = file.read(path)
    source = Source(path.stem, str(path), "onnx", digest)
    own = exported(model, source.name, options)
    loaded = imported(model, source, options) if own is None else Loaded(source, own, ())
    original = None if options.is_repaired else partial(opened, path, model, options.input_shape)
    return replace(loaded, original=original)


def imported(
    model: ModelProto,
    source: Source,
    options: ModelOptions,
    frozen: frozenset[str] | None = None,
    tensors: frozenset[str] | None = None,
) -> Loaded:
    """Import a checked model in memory, whatever it was made from; raises InputError (LIP011).

    `frozen` are the names of stored tensors that are known not to be trained; None if the names say nothing of
    that, nor of which tensors are one. `tensors` are the parameters that `settled` found, where it has been asked.
    """
    if options.bindings:
        name = next(iter(options.bindings))
        raise input_error("LIP011", f"--set: there is no parameter `{name}`", "ONNX models declare no parameters")
    if options.repairs is not None:
        options.repairs.prepare(model)
    at = Location(source.path) if source.format == "onnx" else None

    first = _Import(model, options.apart(), GraphBuilder(source.name), at, frozen, tensors or frozenset())
    reading = _with_tensors(first, most=_MOST_READINGS if tensors is None else 0)
    if options.repairs is not None and reading.options.repairs is not None:
        options.repairs.made.extend(reading.options.repairs.made)
    computed = {} if reading.context is None else reading.context.parameters.computed
    return Loaded(source, reading.graph, tuple(reading.builder.diagnostics), computed=computed)


def settled(
    model: ModelProto, options: ModelOptions, frozen: frozenset[str]
) -> tuple[ModelProto, frozenset[str], frozenset[str]]:
    """Return what `imported` imports at last: the model, what is not trained, and which parameters are tensors."""
    reading = _with_tensors(_Import(model, options, GraphBuilder(""), None, frozen), most=_MOST_READINGS)
    return reading.model, reading.frozen or frozen, reading.tensors


def _with_tensors(first: _Import, most: int) -> _Import:
    """Import a model, and again with those parameters as tensors that it computes with in several ways."""
    spent = limits.spent("constants")
    first.run()
    best, latest, names = first, first, frozenset[str]()
    for _ in range(most):
        more = latest.computed_with() - names
        names |= more
        limits.spend("constants", spent - limits.spent("constants"), "")  # all is computed anew
        again = first.again(names) if more else None
        if again is None:
            break
        latest = again
        latest.run()
        best = latest if latest.graph is not None else best
    return best


@dataclass(slots=True)
class _Import:
    """One import of a model; `tensors` are the initializers that are tensors in it, with a batch in front.

    context, graph: what it has found, once it has run.
    """

    model: ModelProto
    options: ModelOptions
    builder: GraphBuilder
    at: Location | None
    frozen: frozenset[str] | None
    tensors: frozenset[str] = frozenset()
    context: Context | None = None
    graph: Graph | None = None

    def run(self) -> None:
        """Import the model."""
        self.graph = self._read()

    def computed_with(self) -> frozenset[str]:
        """Return the trained parameters that were refused or became constants, where clips may bound gradients.

        `fix` makes parameters of their own of what is refused.
        """
        repairs = self.options.repairs
        if self.context is None or self.options.bounds not in ("clip", "auto") or (repairs and repairs.unties):
            return frozenset()
        parameters, is_whole = self.context.parameters, self.graph is not None
        constants = parameters.constants() if is_whole else []
        made = self._made_of(parameters) if is_whole and self.options.bounds == "clip" else []
        return frozenset((*parameters.several, *constants, *made))

    def _made_of(self, parameters: Parameters) -> list[str]:
        """Return the smallest parameters of a module of which weights are made, of `_MOST_ENTRIES` in all."""
        if self.frozen is None:
            return []
        names = parameters.computed.keys() | parameters.copied
        sized = [(math.prod(one.dims), one.name) for one in self.model.graph.initializer if one.name in names]
        totals = accumulate(size for size, _ in sorted(sized))
        return [name for (_, name), total in zip(sorted(sized), totals, strict=True) if total <= _MOST_ENTRIES]

    def again(self, names: frozenset[str]) -> _Import | None:
        """Return an import with some parameters as tensors; None if they can be none."""
        assert self.context is not None
        found = rewritten(self.model, names, self.context.items, self.context.version)
        if found is None:
            return None
        frozen = self.frozen if self.frozen is None else self.frozen | found.sizes
        builder = GraphBuilder(self.builder.name)
        return _Import(found.model, self.options.apart(), builder, self.at, frozen, found.tensors)

    def _read(self) -> Graph | None:
        """Import every node in order, then the output and the loss."""
        graph = self.model.graph
        found = self._sources(graph)
        output_name = self._output(graph)
        if found is None or output_name is None:
            return None
        nodes = self._nodes()
        self.builder.diagnostics += evaluated(_of_example(nodes, {source.name for source in found}), self.at)
        self.context = context = self._context(found, nodes)
        visitor = Visitor(context, self.at, _declared_shapes(graph))
        for node in nodes:
            visitor.visit(node)
        output = self._as_output(visitor, output_name)
        self._account(context, nodes)
        context.parameters.level()
        self._tell_constants(context.parameters)
        return self.builder.finish(output, self._loss(output))

    def _tell_constants(self, parameters: Parameters) -> None:
        """Warn of what the model trains, and the import does not."""
        single = {tensor.name for tensor in self.model.graph.initializer if math.prod(tensor.dims) == 1}
        numbers = [name for name in parameters.constants() if name in single]
        others = [name for name in parameters.held() if name not in single]
        kept = "; make it a buffer, if it is to be a constant"
        for names, what, way in (
            (numbers, "one number that scales or shifts is a constant, and is not trained", _ONE_EACH),
            (others, "constants that limit, divide or fill in are not trained", _BY_CLIP),
        ):
            if names:
                if self.options.bounds == "clip":
                    what, way = "read as a constant, and not trained", _OTHERWISE
                message = f"{', '.join(f'`{name}`' for name in names)}: {what}"
                found = Diagnostic("LIP123", message, way + kept, Severity.WARNING)
                self.builder.diagnostics.append(found)

    def _account(self, context: Context, nodes: Iterable[OnnxNode]) -> None:
        """Look at all constants that meet an example: what is trained, and no parameter, was read as numbers."""
        if any(found.severity == Severity.ERROR for found in self.builder.diagnostics):
            return
        for node in nodes:
            items = [context.items[name] for name in node.proto.input if name in context.items]
            if all(isinstance(item, Known) for item in items):
                continue
            for item in items:
                if isinstance(item, Known) and context.parameters.is_trained(item):
                    context.parameters.account(item)

    # The graph's ends

    def _refuse(self, code: str, message: str, help_line: str = "") -> None:
        self.builder.diagnostics.append(Diagnostic(code, message, help_line, location=self.at))

    def _sources(self, graph: GraphProto) -> list[InputSource] | None:
        """Return the inputs of the file, None if they are refused."""
        try:
            return sources(graph, self.options.input_shape)
        except Refusal as refusal:
            self._refuse(refusal.code, refusal.message, refusal.help)
            return None

    def _output(self, graph: GraphProto) -> str | None:
        """Return the output; of several, which are refused, the first: there may be more to say."""
        names = [str(value.name) for value in graph.output]
        if len(names) != 1:
            shown = ", ".join(f"`{name}`" for name in names) or "none"
            message = f"a model needs exactly one output, the logits; this one has {shown}"
            help_line = "return one tensor; loss=function of lipcompile.private takes those of several heads"
            self._refuse("LIP107", message, help_line)
        return names[0] if names else None

    def _as_output(self, visitor: Visitor, name: str) -> Value:
        item = visitor.context.items.get(name)
        try:
            if item is None:
                raise Refusal(
                    "LIP110", f"`{name}`, a second output, is not supported", "use the first output only"
                )
            if isinstance(item, Known):
                raise Refusal("LIP107", f"the output `{name}` does not depend on the input")
            if isinstance(item, Placed) and not (item.layout.outer or item.layout.inner):
                place = item.layout.axis
                message = f"the output needs the batch axis in front; here it stands at axis {place}"
                raise Refusal("LIP108", message, f"return output.movedim({place}, 0)")
            output = as_tensor(item, "the output")
            if self.builder.holds_tokens(output):
                raise Refusal("LIP204", "the output is the tokens themselves", "look them up in an embedding")
            return output
        except Blamed:
            if visitor.finish([name]):
                return self._as_output(visitor, name)
            visitor.blame([name])
            return Value(name, None)
        except Refusal as refusal:
            return self.builder.refuse(refusal, name=name, op="output", location=self.at)

    # What the file declares

    def _metadata(self) -> Mapping[str, str]:
        return {entry.key: entry.value for entry in self.model.metadata_props}

    def _norm(self) -> Scalar | None:
        declared = self._metadata().get("lipcompile.input_norm")
        if self.options.input_norm is not None or declared is None:
            return self.options.input_norm
        return parse_number(declared, "metadata lipcompile.input_norm")

    def _loss(self, output: Value) -> LossUse | None:
        """Return the loss of the options or of the file."""
        text = self._declared_loss()
        return None if text is None else replace(self.options.loss_of(output.shape, text), location=self.at)

    def _declared_loss(self) -> str | None:
        return self.options.loss if self.options.loss is not None else self._metadata().get("lipcompile.loss")

    # Nodes

    def _nodes(self) -> list[OnnxNode]:
        """Return the nodes in order, constants first: a look at what follows must find them."""
        stored = {tensor.name for tensor in self.model.graph.initializer}
        stored |= {
            output for proto in self.model.graph.node if proto.op_type == "Identity" for output in proto.output
        }
        nodes = named([describe(proto, stored) for proto in reaching(self.model.graph)])
        if self.frozen is not None:  # nothing was merged: a layer that reads another's weights is tied to it
            nodes = [replace(node, layer="") for node in nodes]
        return sorted(nodes, key=lambda node: node.op_type not in FOLDED_ALONE)

    def _context(self, found: Sequence[InputSource], nodes: Sequence[OnnxNode]) -> Context:
        graph = self.model.graph
        values = declare(self.builder, found, self._norm(), self.at)
        if len(found) > 1:
            self._tell_order(found)
        readers: defaultdict[str, list[OnnxNode]] = defaultdict(list)
        for node in nodes:
            for name in node.proto.input:
                readers[name].append(node)
        stored = frozenset(tensor.name for tensor in graph.initializer)
        context = Context(
            builder=self.builder,
            parameters=Parameters(self.builder, self.options, stored, self.frozen),
            version=file.opset(self.model) or 0,
            batch=found[0].batch,
            readers=readers,
            makers={output: node for node in nodes for output in node.outputs if output},
            outputs=frozenset(output.name for output in graph.output),
            loss=(self._declared_loss() or "").partition(":")[0] or None,
        )
        context.items |= values
        given = {name: unplaced(item).name for name, item in values.items()}
        context.inputs = frozenset(given.values())
        context.truths = frozenset(given[source.name] for source in found if source.truths)
        self._store_weights(context)
        return context

    def _tell_order(self, found: Sequence[InputSource]) -> None:
        parts = ", ".join(f"`{source.name}` {list(source.shape)}" for source in found)
        message = f"the module takes the inputs {parts} by name, or in this order"
        message += "" if found[0].tokens else "; one norm bounds them together"
        self.builder.diagnostics.append(Diagnostic("LIP113", message, severity=Severity.NOTE, location=self.at))

    def _store_weights(self, context: Context) -> None:
        for tensor in self.model.graph.initializer:
            try:
                array = checked(numpy_helper.to_array(tensor))
            except Exception as error:
                message = error.message if isinstance(error, Refusal) else "its data are damaged"
                self._refuse("LIP304", f"the stored tensor `{tensor.name}` cannot be used: {message}")
                context.items[tensor.name] = Value(tensor.name, None)
                continue
            known = Known(array, context.parameters.sources([tensor.name]))
            separate = self._merged_copies(context, tensor.name, known)
            reused = len(context.readers[tensor.name]) - separate > 1
            context.items[tensor.name] = replace(known, reused=reused)
        for name in sorted(self.tensors):
            if isinstance(item := context.items[name], Known):
                context.items[name] = self._as_tensor(context, name, item)
        if self.model.graph.sparse_initializer:
            self._refuse("LIP110", "sparse weights are not yet supported", "store them densely")

    def _as_tensor(self, context: Context, name: str, known: Known) -> Item:
        """Return a parameter as a tensor, with an axis for the batch in front; a number has one axis more."""
        at = replace(context.readers[name][0], name=module_of(name) or name)
        front = replace(known, array=known.array.reshape(1, *(known.array.shape or (1,))))
        try:
            return of_every_example(context, at, front, "")
        except Refusal as refusal:
            return self.builder.refuse(refusal, name=name, op="parameter", location=self.at)

    def _merged_copies(self, context: Context, name: str, known: Known) -> int:
        """Give copies of a constant tensor that are named like weights their independence back; count them.

        Exporters store equal tensors once, and copy: biases that start at zero are equal without being tied.
        """
        constant = known.array.size > 0 and bool((known.array == known.array.flat[0]).all())
        copies = [
            node.outputs[0]
            for node in context.readers[name]
            if node.op_type == "Identity" and constant and module_of(node.outputs[0])
        ]
        merged = [
            f"{node.layer}.{name.rpartition('.')[2]}" for node in context.readers[name] if is_merged(node, known)
        ]
        for copy in (copy for copy in (*copies, *merged) if copy.endswith((".weight", ".bias"))):
            message = f"`{copy}` is stored as a copy of `{name}`, of equal entries: taken as a weight of its own"
            self.builder.diagnostics.append(
                Diagnostic("LIP309", message, severity=Severity.NOTE, location=self.at)
            )
        return len(copies) + len(merged)


def _declared_shapes(graph: GraphProto) -> Mapping[str, Shape]:
    """Return shapes of tensors of one example, where the file tells: used behind a refused node only."""
    found = {}
    for value in (*graph.value_info, *graph.output):
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if sizes and all(size > 0 for size in sizes[1:]):
            found[value.name] = tuple(sizes[1:])
    return found


# Batch normalisations that normalised by their batch in the module, and by fixed statistics in the file.
# torch.onnx.export(dynamo=True) writes batch normalisation as if the module were evaluated, and only says in the
# metadata of the node that it was not. A file means what it computes, but who exported it may have meant more.

_CALL = "pkg.torch.onnx.fx_node"
# What torch calls, with its arguments: …, training, momentum, eps).
_IN_TRAINING = re.compile(
    r"target=torch\.ops\.aten\.\w*batch_norm\w*\.\w+\]\(args = \([^()]*, True, [\d.e+-]+, [\d.e+-]+\)"
)
_HELP = "export the module after .eval(), to say so; in training mode it couples the examples of a batch (LIP101)"


def evaluated(nodes: Iterable[OnnxNode], at: Location | None) -> Iterator[Diagnostic]:
    """Yield a warning if batch normalisations were in training mode, and are not in the file."""
    names = [node.call.rpartition(".")[0] or node.label for node in nodes if _was_in_training(node)]
    if not names:
        return
    others = f" and {len(names) - 1} more were" if len(names) > 1 else " was"
    message = f"the file normalises by running statistics, though `{names[0]}`{others} in training mode"
    yield Diagnostic("LIP114", message, _HELP, Severity.WARNING, names[0], "BatchNormalization", at)


def _of_example(nodes: Iterable[OnnxNode], inputs: set[str]) -> Iterator[OnnxNode]:
    """Yield the nodes that depend on an input; the others normalise weights."""
    reached = set(inputs)
    for node in nodes:
        if not reached.isdisjoint(node.proto.input):
            reached.update(node.outputs)
            yield node


def _was_in_training(node: OnnxNode) -> bool:
    call = next((entry.value for entry in node.proto.metadata_props if entry.key == _CALL), "")
    return not node.attributes.get("training_mode") and _IN_TRAINING.search(call) is not None
