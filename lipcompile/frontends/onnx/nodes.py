"""From nodes to items: each is folded, recognised as the end of a spelling, imported, fixed, or refused."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lipcompile.core.graph import Value
from lipcompile.core.record import Shape
from lipcompile.diagnostics import Diagnostic, Location, Refusal, Severity
from lipcompile.frontends.onnx import shape_after_refusal as guess
from lipcompile.frontends.onnx.constants import of_every_example, rows_of_each
from lipcompile.frontends.onnx.context import Blamed, Context
from lipcompile.frontends.onnx.entries import with_entries
from lipcompile.frontends.onnx.file import read as file
from lipcompile.frontends.onnx.layout import FIRST, Placed, placed
from lipcompile.frontends.onnx.node import OnnxNode, module_of
from lipcompile.frontends.onnx.operators import (
    CARRIED,
    IMPORTERS,
    PARTS,
    PLACING,
    check_version,
    refuse_unseen,
    unsupported,
)
from lipcompile.frontends.onnx.patterns.patterns import spelled
from lipcompile.frontends.onnx.refused import DRAWS
from lipcompile.frontends.onnx.values import MOVES, Item, Known, PoisonedError, Unfinished, fold
from lipcompile.frontends.repairs import Repairs, groups_of
from lipcompile.ops.normalisation.onnx_read import affine, per_channel
from lipcompile.ops.normalisation.rules import Center, GroupNorm
from lipcompile.ops.pointwise import onnx_read as pointwise
from lipcompile.ops.table import OP_BY_NAME

FOLDED_ALONE = ("Constant",)
# What a part of a spelling is refused for, if it turns out to be none.
_ALONE = ("LIP100", "LIP110")
# What draws random numbers for constants, which become those of an example where they meet it.
_DRAWING = ("Bernoulli", "Dropout", "RandomUniformLike")


@dataclass(slots=True)
class Visitor:
    """Visits the nodes of a file in order. `shapes`: of one example, where the file tells them."""

    context: Context
    at: Location | None
    shapes: Mapping[str, Shape]
    _blamed: set[tuple[str, ...]] = field(default_factory=set)

    def visit(self, node: OnnxNode) -> None:
        """Import one node; what is refused keeps its inferred shape, so that the rest can be looked at."""
        if any(output in self.context.absorbed for output in node.outputs):
            return
        found = self.context.builder.diagnostics
        first = len(found)
        try:
            self._store(node, self._import(node))
        except Blamed:
            if self.finish(node.proto.input):
                self.visit(node)
                return
            self.blame(node.proto.input)
            self._poison(node)
            return
        except PoisonedError:
            self._store(node, [Value(output, None) for output in node.outputs])
        except Refusal as refusal:
            instead = repaired(self.context, node, refusal)
            if instead is None and self._spread(node, refusal):
                self.visit(node)
                return
            if instead is not None:
                self._store(node, [placed(instead, self.context.layout)])
            elif self._waits(node, refusal):
                self._refuse(node, refusal)
            else:
                self._computed_otherwise(node, refusal)
        at = self.at or node.traced
        found[first:] = [replace(d, node=node.label, op=node.shown, location=at) for d in found[first:]]

    def _spread(self, node: OnnxNode, refusal: Refusal) -> bool:
        """Make tensors of the constants that a refused node reads and each example has; return whether any is one.

        These were copied for each example, or an operator of tensors is applied to them as if they were one.
        """
        if node.op_type in (*DRAWS, *_DRAWING, "ScatterElements"):
            return False
        items = [self.context.items.get(name) for name in node.proto.input]
        found = [
            name
            for name, item in zip(node.proto.input, items, strict=True)
            if isinstance(item, Known) and item.copies is not None
        ]
        if not found and node.op_type in IMPORTERS and all(isinstance(item, Known) for item in items):
            found = [*node.proto.input[:1]] if refusal.code == "LIP100" else []
        spread = [self._as_tensor(name) for name in found]
        return any(spread)

    def _as_tensor(self, name: str) -> bool:
        """Replace a constant by a tensor, from where it was copied for each example on."""
        item, moved, maker = self.context.items[name], list[OnnxNode](), self.context.makers.get(name)
        while maker is not None and maker.op_type in MOVES:
            before = self.context.items.get(maker.proto.input[0])
            if not isinstance(before, Known) or before.copies is None:
                break
            name, item, moved = maker.proto.input[0], before, [maker, *moved]
            maker = self.context.makers.get(name)
        if not isinstance(item, Known) or (maker is None and item.copies is not None):
            return False
        try:
            at = maker or self.context.readers[name][0]
            self.context.items[name] = of_every_example(self.context, at, item, "_of_each")
        except Refusal:
            return False
        for node in moved:
            self.visit(node)
        return True

    def finish(self, names: Iterable[str]) -> bool:
        """Compute what these tensors come from that has no bound, as far as it may be computed without one.

        Returns whether nothing is left to blame.
        """
        finished = [self._finished(name) for name in names]
        return all(finished)

    def _finished(self, name: str) -> bool:
        node = self.context.makers.get(name)
        if node is None or not isinstance(self.context.items.get(name), Unfinished):
            return True
        if self._is_dropped(node):
            return True
        if not self.finish(node.proto.input):
            return False
        item = self.context.items[name]
        if not isinstance(item, Unfinished):  # a node before it has absorbed it
            return True
        self.context.alone.update(node.outputs)
        found = self.context.builder.diagnostics
        first = len(found)
        try:
            self._store(node, self._import(node))
        except Refusal as refusal:
            return self._computed_otherwise(node, item.refusal if item.node is node else refusal)
        except PoisonedError:  # then the first cause is told instead
            del found[first:]
            return self._computed_otherwise(node, item.refusal, item)
        return True

    def _is_dropped(self, node: OnnxNode) -> bool:
        """Whether a node is dropout of an operand that has been finished: what is drawn is nothing by itself."""
        roots = {
            name: item.node
            for name in node.proto.input
            if isinstance(item := self.context.items.get(name), Unfinished)
        }
        drawn = {name for name, root in roots.items() if root.op_type in _DRAWING}
        if not drawn or drawn == {*roots} or not self.finish(roots.keys() - drawn):
            return False
        self._store(node, self._import(node))
        return not isinstance(self.context.items[node.outputs[0]], Unfinished)

    def _computed_otherwise(self, node: OnnxNode, refusal: Refusal, cause: Unfinished | None = None) -> bool:
        """Compute a refused node as functions without a Lipschitz constant; refuse it where none is allowed.

        cause: what is refused in its place.
        """
        try:
            instead = pointwise.instead(self.context, node)
        except Refusal as mixing:
            refusal, instead = mixing, None
        except PoisonedError:
            instead = Value(node.outputs[0], None)
        if instead is None and cause is not None:
            self._report(cause.node, refusal, cause.operands)
            self._poison(node)
        elif instead is None:
            self._refuse(node, refusal)
        if instead is None:
            return False
        self._store(node, [instead])
        return True

    def blame(self, names: Iterable[str]) -> None:
        """Report what these tensors come from that has no bound: it has turned out to be part of no spelling."""
        waiting, causes = list(names), []
        while waiting:
            name = waiting.pop()
            item, node = self.context.items.get(name), self.context.makers.get(name)
            if not isinstance(item, Unfinished) or node is None or node.outputs in self._blamed:
                continue
            self._blamed.add(node.outputs)
            causes.append((node, item))
            waiting += node.proto.input
        for node, item in reversed(causes):
            if item.node is node:
                self._report(node, item.refusal, item.operands)
            elif node.op_type not in IMPORTERS and item.node.op_type not in _DRAWING:
                self._report(node, unsupported(node.op_type, standard=True), ())

    def _report(self, node: OnnxNode, refusal: Refusal, operands: Sequence[Value]) -> None:
        at = self.at or node.traced
        self._note_parameters(node, refusal)
        self.context.builder.refuse(refusal, name=node.label, op=node.shown, location=at, inputs=operands)

    def _note_parameters(self, node: OnnxNode, refusal: Refusal) -> None:
        """Note the parameters that a refused node reads: as tensors, more operators may take them."""
        for item in self._operands(node):
            if isinstance(item, Known) and self.context.parameters.will_train(item):
                self.context.parameters.computed_with(item, refusal)

    def _refuse(self, node: OnnxNode, refusal: Refusal) -> None:
        """Keep a possible part of a spelling in mind; report anything else."""
        operands = self._operands(node)
        tensors = [tensor for item in operands if (tensor := _tensor(item)) is not None]
        if self._waits(node, refusal):
            self._store(node, [Unfinished(node, refusal, tuple(tensors))] * len(node.outputs))
            return
        self._note_parameters(node, refusal)
        self.context.builder.refuse(refusal, name=node.label, op=node.shown, inputs=tensors)
        self._poison(node)

    def _waits(self, node: OnnxNode, refusal: Refusal) -> bool:
        """Whether a refused node may yet be a part of a spelling."""
        reads = any(_tensor(item) is not None for item in self._operands(node))
        return node.op_type in PARTS and refusal.code in _ALONE and (reads or node.op_type in _DRAWING)

    def _poison(self, node: OnnxNode) -> None:
        operands = self._operands(node)
        known = any(not isinstance(item, Known) for item in operands)
        known &= not any(isinstance(item, Placed) for item in operands)  # where its batch stands is not known
        shapes = guess.outputs(node.proto, self.context.items, self.context.version) if known else {}
        for output in filter(None, node.outputs):
            shape = shapes.get(output, self.shapes.get(output)) if known else None
            self.context.items[output] = Value(output, shape)

    def _operands(self, node: OnnxNode) -> list[Item]:
        return [item for name in node.proto.input if (item := self.context.items.get(name)) is not None]

    def _import(self, node: OnnxNode) -> Sequence[Item | None]:
        """Return what the outputs of a node are."""
        if node.proto.domain not in file.OFFICIAL_DOMAINS:
            message = f"unsupported op {node.op_type} of the domain `{node.proto.domain}`"
            raise Refusal(
                "LIP109", message, "only standard ONNX operators are understood: export without extensions"
            )
        operands, standard = self._operands(node), file.is_standard(node.op_type, self.context.version)
        if any(isinstance(item, Value) and item.shape is None for item in operands):
            refuse_unseen(node, standard=standard)
            return [Value(output, None) for output in node.outputs]
        given = [self.context.item(node, index) for index in range(len(node.proto.input))]
        if all(item is None or isinstance(item, Known) for item in given) and (
            given or node.op_type in FOLDED_ALONE
        ):
            if node.op_type == "Tile" and (copied := rows_of_each(self.context, node)) is not None:
                return [copied]
            return self._fold(node, [item for item in given if item is None or isinstance(item, Known)])
        return self._computed(node, operands, standard=standard)

    def _computed(self, node: OnnxNode, operands: Sequence[Item], *, standard: bool) -> Sequence[Item | None]:
        """Import a node that depends on the example; its results have their batch where its operands have it."""
        check_version(node.op_type, self.context.version)
        layouts = {item.layout for item in operands if isinstance(item, Placed)}
        self.context.layout = layouts.pop() if len(layouts) == 1 and node.op_type in CARRIED else FIRST
        try:
            meant = spelled(self.context, node)
            found = self._by_table(node, operands, standard=standard) if meant is None else meant
            results = found if isinstance(found, Sequence) else [found]
            layout = self.context.layout
            return [placed(item, layout) if isinstance(item, Value) else item for item in results]
        finally:
            self.context.layout = FIRST

    def _by_table(
        self, node: OnnxNode, operands: Sequence[Item], *, standard: bool
    ) -> Item | Sequence[Item | None] | None:
        unfinished = next((item for item in operands if isinstance(item, Unfinished)), None)
        if unfinished is not None:
            if node.op_type not in PARTS | PLACING:
                raise Blamed
            return [unfinished] * len(node.outputs)
        if node.op_type not in IMPORTERS:
            raise unsupported(node.op_type, standard=standard)
        return IMPORTERS[node.op_type](self.context, node)

    def _fold(self, node: OnnxNode, operands: Sequence[Known | None]) -> Sequence[Item]:
        """Evaluate a node on constants; its results may be weights as well."""
        outputs = [name for name in node.outputs if name]
        results = fold(node.proto, operands, self.context.version)
        results = with_entries(node.proto, operands, results, self.context.version)
        if node.op_type == "BatchNormalization" and any(result.sources for result in results):
            message = f"the weight that `{node.label}` standardises is trained itself, without standardisation"
            help_line = "write the standardised weight into the module, if that is meant"
            found = Diagnostic("LIP122", message, help_line, Severity.WARNING)
            self.context.builder.diagnostics.append(found)
        if node.op_type in FOLDED_ALONE or self._is_separate(node):
            sources = self.context.parameters.sources(outputs)
            results = [
                replace(result, sources=sources, moves=(), reused=False, entries=None, computed={})
                for result in results
            ]
        whole = operands[0] if operands else None
        if whole is not None and (cut := self._cut(node, whole.array.shape, results)) is not None:
            results = self._parts(node, whole, results, *cut)
        again = [len(self.context.readers.get(name, ())) > 1 for name in outputs]
        return [replace(result, reused=result.reused or more) for result, more in zip(results, again, strict=True)]

    def _cut(self, node: OnnxNode, shape: Shape, parts: Sequence[Known]) -> tuple[Hashable, list[str]] | None:
        """Return how a node cuts a constant into parts that do not overlap, and the names of these; None if not.

        Rows that are taken one by one, as those of several experts, are parts if nothing else reads the constant.
        """
        axis = node.integer("axis", 0)
        if node.op_type == "Split":
            return ("Split", axis, tuple(part.array.shape for part in parts)), [*map(str, range(len(parts)))]
        own, all_rows = self._row(node), [*map(self._row, self.context.readers.get(node.proto.input[0], ()))]
        rows = [row for row in all_rows if row is not None and row[0] == axis]
        if own is None or len(rows) < len(all_rows) or len({place % shape[axis] for _, place in rows}) < 2:
            return None
        return ("Gather", axis), [str(own[1] % shape[axis])]

    def _row(self, node: OnnxNode) -> tuple[int, int] | None:
        """Return the axis along which a node takes one entry, and which one; None if it does something else."""
        place = self.context.items.get(node.proto.input[1]) if node.op_type == "Gather" else None
        if not isinstance(place, Known) or place.array.ndim or place.copies is not None:
            return None
        return node.integer("axis", 0), int(place.array)

    def _parts(
        self, node: OnnxNode, whole: Known, parts: list[Known], cut: Hashable, names: Sequence[str]
    ) -> list[Known]:
        """Let the parts of a stored tensor be weights of their own, unless it is used as a whole as well."""
        if len(whole.sources) != 1 or whole.moves or whole.copies is not None:
            return parts
        part = self.context.parameters.part
        with suppress(Refusal):
            return [part(whole, one.array, name, cut, node.label) for name, one in zip(names, parts, strict=True)]
        return parts

    def _is_separate(self, node: OnnxNode) -> bool:
        """Whether the node copies a constant tensor that another module has as well, by chance."""
        item = self.context.items.get(node.proto.input[0]) if node.proto.input else None
        if node.op_type != "Identity" or not isinstance(item, Known) or not module_of(node.outputs[0]):
            return False
        return item.array.size > 0 and bool((item.array == item.array.flat[0]).all())

    def _store(self, node: OnnxNode, results: Sequence[Item | None]) -> None:
        named = [name for name in node.outputs if name]
        outputs = node.outputs if len(results) == len(node.outputs) else named
        for output, result in zip(outputs, results, strict=False):
            if output and result is not None:
                self.context.items[output] = result


def _tensor(item: Item) -> Value | None:
    if isinstance(item, Placed):
        return item.value
    return item if isinstance(item, Value) else None


# Fixes: what `fix` puts in the place of nodes that are refused


def repaired(context: Context, node: OnnxNode, refusal: Refusal) -> Value | None:
    """Return what takes the place of a refused node, None where nothing does, or nobody asked for it."""
    repairs = context.parameters.options.repairs
    make = _REPAIRS.get(refusal.code)
    if repairs is None or make is None:
        return None
    try:
        return make(context, node, repairs)
    except PoisonedError:
        return Value(node.outputs[0], None)
    except Refusal:
        return None


def _normalised(context: Context, node: OnnxNode, repairs: Repairs) -> Value:
    """A norm of one example, or its centring, with the factors and the shift of the batch normalisation."""
    operand, example = context.tensor(node), context.shape(node)
    if repairs.batch_norm == "center":
        made, text = context.add(node, OP_BY_NAME["center"], Center(), [operand]), "center"
    else:
        norm = GroupNorm(groups_of(example), **repairs.divisor)
        made = context.add(node, OP_BY_NAME["group_norm"], norm, [operand])
        text = f"group_norm({norm.groups}, {repairs.said_divisor})"
    repairs.note(node.label, f"batch norm -> {text}, its factors and its shift")
    return affine(context, node, made, example[:1], per_channel(example))


def _left_out(context: Context, node: OnnxNode, repairs: Repairs) -> Value:
    """Hand on the logits."""
    logits = context.tensor(node)
    repairs.note(node.label, f"last {node.op_type} -> left out, as the loss has its own")
    return logits


# By the code of the refusal.
_REPAIRS: Mapping[str, Callable[[Context, OnnxNode, Repairs], Value]] = {
    "LIP101": _normalised,
    "LIP214": _left_out,
}
