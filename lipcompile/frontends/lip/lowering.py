"""A .lip model -> a graph: statements in order, every problem collected, what depends on one skipped."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from lipcompile import limits
from lipcompile.analysis.depth.loops import GROWING, Loop, NotAffineError, affine, loop_op, loops
from lipcompile.core.graph import Graph, GraphBuilder, LossUse, ParameterChoice, Value
from lipcompile.core.names import is_derived
from lipcompile.core.record import NoAttributes, Shape
from lipcompile.diagnostics import Diagnostic, Refusal
from lipcompile.frontends.lip import backbone
from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.backbone import Backbones
from lipcompile.frontends.lip.layers import LayerLowering, operands_of, unknown_layer
from lipcompile.frontends.lip.repairing import repaired
from lipcompile.frontends.lip.scope import Problem, Scope, Unknowable
from lipcompile.frontends.options import ModelOptions, parse_loss
from lipcompile.numbers import Arithmetic, Count, Scalar, Symbol, combine, symbols_of
from lipcompile.ops.loss.constants import check_numbers
from lipcompile.ops.loss.names import loss_attributes, unknown_loss
from lipcompile.ops.merge.rules import CONCAT, MAXIMUM, MINIMUM, PRODUCT, SUM, Concat, Sum
from lipcompile.ops.recurrent import lip_layers as recurrent
from lipcompile.ops.recurrent.cells import CELLS
from lipcompile.ops.registry import layers
from lipcompile.ops.rules import feature_axis
from lipcompile.ops.schema import Argument, ArgumentError, bind, suggest
from lipcompile.ops.shape.rules import Slice
from lipcompile.ops.table import LOSS_BY_NAME, OP_BY_NAME

# Merges of branches that take no arguments and no weights.
_MERGES = {op.name: op for op in (PRODUCT, MAXIMUM, MINIMUM)}
POISONED = Value("poisoned", None)
ONE = Fraction(1)


def lower(
    model: ast.Model, blocks: Mapping[str, ast.Block], options: ModelOptions
) -> tuple[Graph | None, tuple[Diagnostic, ...]]:
    """Return the graph of `model`, or None and the reasons."""
    lowering = Lowering(blocks, options, GraphBuilder(model.name.text), Path())
    graph = lowering.run(model)
    return graph, tuple(lowering.builder.diagnostics)


@dataclass(slots=True)
class Lowering:
    """Lowers one model, whose file lies in `folder`.

    calls: the blocks that are being written out. depth: of statements in one another. written: all so far.
    """

    blocks: Mapping[str, ast.Block]
    options: ModelOptions
    builder: GraphBuilder
    folder: Path
    layers: LayerLowering = field(init=False)
    backbones: Backbones = field(init=False)
    loss: LossUse | None = None
    calls: tuple[str, ...] = ()
    depth: int = 0
    written: int = 0
    repeats: int = 0

    def __post_init__(self) -> None:
        self.layers = LayerLowering(self.builder, self.options)
        self.backbones = Backbones(self.folder, self.options, self.builder)

    def run(self, model: ast.Model) -> Graph | None:
        """Return the graph, None if the builder's diagnostics say why there is none."""
        scope, current = Scope(), POISONED
        for declaration in model.items:
            if not isinstance(declaration, ast.Statement):
                scope, current = self._declaration(declaration, scope, current)
        if not any(isinstance(item, ast.InputLine) for item in model.items):
            self._report(
                Problem("LIP011", "the model declares no input", model.name.at, "write input x: tensor[784]")
            )
        body = tuple(item for item in model.items if isinstance(item, ast.Statement))
        output = self._body(body, current, scope)
        if self.options.loss is not None:
            self.loss = parse_loss(self.options.loss)
        return self.builder.finish(output, self.loss)

    def _report(self, problem: Problem) -> None:
        if not isinstance(problem, Unknowable):
            self.builder.diagnostics.append(problem.diagnostic)

    # Declarations

    def _declaration(self, item: ast.Item, scope: Scope, current: Value) -> tuple[Scope, Value]:
        try:
            if isinstance(item, ast.Param):
                return self._param(item, scope), current
            if isinstance(item, ast.InputLine):
                value = self._input(item, scope, current)
                scope.define(item.name.text, value)
                return scope, value
            if isinstance(item, ast.LossLine):
                self.loss = self._loss(item.call, scope)
        except Problem as problem:
            self._report(problem)
            scope = _refused(item, scope)
        return scope, current

    def _param(self, item: ast.Param, scope: Scope) -> Scope:
        name, kind = item.name.text, item.kind.text
        if kind not in ("int", "real"):
            raise Problem("LIP012", f"a parameter is an int or a real, not `{kind}`", item.kind.at)
        if name in scope.numbers:
            raise Problem("LIP013", f"`{name}` is declared twice", item.name.at)
        _check_free(item.name)
        value: Scalar = Symbol(name, f"parameter {name}")
        if name in self.options.bindings:
            value = self.options.bindings[name]
        elif item.value is not None:
            value = scope.scalar(item.value)
        if kind == "int" and isinstance(value, Fraction) and value.denominator != 1:
            raise Problem("LIP012", f"`{name}` is an int, but its value is {float(value)}", item.name.at)
        return scope.with_number(name, value)

    def _input(self, item: ast.InputLine, scope: Scope, current: Value) -> Value:
        if current.shape is not None:
            raise Problem("LIP013", "a model has one input", item.name.at)
        if item.kind.text not in ("tensor", "tokens"):
            near = suggest(item.kind.text, ["tensor", "tokens"]) or "write tensor[…] or tokens[…]"
            raise Problem("LIP012", f"an input is a tensor or tokens, not `{item.kind.text}`", item.kind.at, near)
        tokens = item.kind.text == "tokens"
        if tokens and (item.norm is not None or item.trusted or self.options.input_norm is not None):
            raise Problem("LIP204", "tokens have no norm", item.name.at, "the rows of the embedding are bounded")
        shape = tuple(scope.integer(size, "a size") for size in item.shape)
        norm = None if item.norm is None else self._norm(item.norm, scope)
        if self.options.input_norm is not None:
            norm = self.options.input_norm
        return self.builder.input(item.name.text, shape, norm, item.trusted, item.name.at, tokens=tokens)

    def _norm(self, expression: ast.Expression, scope: Scope) -> Scalar | None:
        """Return the norm. A mistake in it is reported here: the layers can be examined without it."""
        try:
            return self._norm_value(expression, scope)
        except Problem as problem:
            self._report(problem)
            return None

    def _norm_value(self, expression: ast.Expression, scope: Scope) -> Scalar:
        """An undeclared name is a symbol of its own, unless --set gives it a value."""
        if isinstance(expression, ast.Name) and expression.text in self.options.bindings:
            return self.options.bindings[expression.text]
        if isinstance(expression, ast.Name) and expression.text != "X_0":
            _check_free(expression)
        return scope.scalar(expression, open_names=True)

    def _loss(self, call: ast.Call, scope: Scope) -> LossUse:
        if self.loss is not None:
            raise Problem("LIP013", "a model has one loss", call.at)
        name = call.name.text
        if name not in LOSS_BY_NAME:
            raise Problem("LIP210", f"unknown loss `{name}`", call.at, unknown_loss(name))
        loss = LOSS_BY_NAME[name]
        positional = [scope.argument(argument.value) for argument in call.arguments if argument.name is None]
        named: dict[str, Argument] = {a.name.text: scope.argument(a.value) for a in call.arguments if a.name}
        try:
            attributes = loss_attributes(loss, positional, named)
            check_numbers(attributes)  # now: there may be no logits to examine the loss with
        except ArgumentError as error:
            raise Problem("LIP012", f"`{name}`: {error.message}", call.at, error.help) from None
        except Refusal as refusal:
            raise Problem(refusal.code, refusal.message, call.at, refusal.help) from None
        return LossUse(loss, attributes, call.at)

    # Statements

    def _body(self, body: Sequence[ast.Statement], current: Value, scope: Scope) -> Value:
        """Lower statements in order and return the last value; names they define end with the body."""
        scope = scope.inner()
        for statement in body:
            try:
                results = self._results(statement, current, scope)
            except Problem as problem:
                self._report(problem)
                results = [POISONED] * max(len(statement.targets), 1)
            for name, value in zip(statement.targets, results, strict=False):
                scope.define(name.text, value)
            current = results[-1]
        return current

    def _results(self, statement: ast.Statement, current: Value, scope: Scope) -> list[Value]:
        targets, layer = statement.targets, statement.layer
        self.written += 1
        limits.demand("nodes", self.written, "the model, written out, has", layer.at)
        for name in targets:
            if name.text in scope.values or name.text in scope.hidden:
                raise Problem("LIP013", f"`{name.text}` is defined twice", name.at, "choose another name")
        if isinstance(layer, ast.Call) and layer.name.text == "split":
            return self._split(layer, targets, current, scope)
        if len(targets) > 1:
            raise Problem("LIP012", "only `split` gives several results", targets[1].at)
        return [self._layer(layer, current, scope, targets[0].text if targets else None)]

    def _layer(self, layer: ast.Layer, current: Value, scope: Scope, target: str | None) -> Value:
        self.depth += 1
        limits.demand("depth", self.depth, "this is nested", layer.at)
        try:
            return self._written_out(layer, current, scope, target)
        finally:
            self.depth -= 1

    def _written_out(self, layer: ast.Layer, current: Value, scope: Scope, target: str | None) -> Value:
        match layer:
            case ast.Call() if layer.name.text in self.blocks:
                return self._block(layer, current, scope)
            case ast.Call():
                return self._call(layer, current, scope, target)
            case ast.Frozen():
                return self._body(layer.body, current, replace(scope, frozen=True))
            case ast.Repeat():
                return self._repeat(layer, current, scope)
            case ast.Residual():
                return self._residual(layer, current, scope)
            case ast.Branch():
                outputs = [self._body(body, current, scope) for body in layer.bodies]
                return self._merge(layer.merge, outputs, scope)

    def _call(self, call: ast.Call, current: Value, scope: Scope, target: str | None) -> Value:
        if call.name.text in CELLS:
            return recurrent.lower(self.layers, call, current, scope, target)
        if call.name.text == backbone.NAME:
            return self.backbones.inline(self.builder, call, current, scope)
        if call.name.text not in layers():
            if self.options.repairs is not None and self.options.repairs.names(call.name.text):
                return repaired(self.layers, self.options.repairs, call, current, scope, target)
            raise unknown_layer(call.name, list(self.blocks))
        return self.layers.lower(call, current, scope, target)

    def _repeat(self, layer: ast.Repeat, current: Value, scope: Scope) -> Value:
        if isinstance(scope.scalar(layer.count), Symbol | Arithmetic):
            return self._open_repeat(layer, current, scope)
        count = scope.integer(layer.count, "a repeat count") if layer.body else 0
        written = self.written + count * len(layer.body)
        limits.demand("nodes", written, "the model, written out, has", layer.at)
        for step in range(count):
            inner = replace(scope, path=(*scope.path, f"repeat@{layer.at.line}:{step}"))
            current = self._body(layer.body, current, inner)
        return current

    def _open_repeat(self, layer: ast.Repeat, current: Value, scope: Scope) -> Value:
        """Lower the body once, to a graph of its own, and stand a loop for its copies."""
        if current.shape is None:
            return POISONED
        self.repeats += 1
        name, count = f"repeat_{self.repeats}", scope.scalar(layer.count)
        body, shared = self._copy(layer, name, current.shape, scope)
        if body is None:
            return POISONED
        if body.clips:
            raise Problem("LIP316", "a repetition whose count is open cannot be clipped", layer.at, _give(count))
        if body.shape(body.output) != current.shape:
            message = f"one copy makes {list(body.shape(body.output))} of {list(current.shape)}"
            raise Problem("LIP014", f"{message}, so that the next copies differ", layer.at, _give(count))
        try:
            loop = affine(Loop(name, body, Count(count, None), GROWING, (), shared))
        except NotAffineError as error:
            message = f"the bounds have no closed form in the number of copies: {error}"
            raise Problem("LIP014", message, layer.at, _give(count)) from None
        choices = {
            role: ParameterChoice(
                p.constraint, p.trainable, copies=p.copies if role in shared else _times(count, p.copies)
            )
            for role, p in body.parameters.items()
        }
        return self.builder.add(
            loop_op(loop), loop, [current], name=name, location=layer.at, parameters=choices, scope=scope.path
        )

    def _copy(
        self, layer: ast.Repeat, name: str, shape: Shape, scope: Scope
    ) -> tuple[Graph | None, frozenset[str]]:
        """Return one copy as a graph, and those of its parameters that all copies share."""
        outside, layers = self.builder, self.layers
        self.builder = GraphBuilder(name, outside.diagnostics)
        self.layers = layers.inside(self.builder)
        entry = self.builder.input("entry", shape, None, trusted=False, location=layer.at)
        names = scope.hidden | set(scope.values)
        inside = replace(scope, values=ChainMap(), hidden=names, path=(*scope.path, name))
        output = self._body(layer.body, entry, inside)
        body = self.builder.finish(output, None)
        shared = self.layers.shared()
        if body is not None:
            shared |= {node.parameters[role] for node in loops(body) for role in node.attributes.shared}
        layers.closed |= self.layers.labels | self.layers.closed
        self.builder, self.layers = outside, layers
        return body, frozenset(shared)

    def _block(self, call: ast.Call, current: Value, scope: Scope) -> Value:
        """Lower a block's body with its parameters bound; it sees no names of its caller."""
        if call.name.text in self.calls:
            raise Problem("LIP013", f"block `{call.name.text}` uses itself", call.at)
        block = self.blocks[call.name.text]
        inner = Scope(self._bound(block, call, scope), ChainMap(), scope.frozen, (*scope.path, call.name.text))
        outer, self.calls = self.calls, (*self.calls, call.name.text)
        try:
            return self._body(block.body, current, inner)
        finally:
            self.calls = outer

    def _bound(self, block: ast.Block, call: ast.Call, scope: Scope) -> dict[str, Scalar]:
        names = [name.text for name, _ in block.parameters]
        positional = [argument.value for argument in call.arguments if argument.name is None]
        given = dict(zip(names, positional, strict=False))
        for argument in call.arguments:
            if argument.name is not None:
                if argument.name.text not in names or argument.name.text in given:
                    near = suggest(argument.name.text, names)
                    raise Problem("LIP012", f"no free argument `{argument.name.text}`", argument.name.at, near)
                given[argument.name.text] = argument.value
        if len(positional) > len(names):
            raise Problem("LIP012", f"`{call.name.text}` takes {len(names)} arguments", call.at)
        bound = {name: scope.scalar(value) for name, value in given.items()}
        for name, default in block.parameters:
            if name.text not in bound:
                if default is None:
                    raise Problem("LIP012", f"`{call.name.text}` needs `{name.text}`", call.at)
                bound[name.text] = Scope(bound).scalar(default)
        return bound

    def _residual(self, layer: ast.Residual, current: Value, scope: Scope) -> Value:
        """h ↦ (1-t)·h + t·f(h) for convex(t), h + f(h) for add, their mean for mean.

        A residual keeps the shape of its input: behind one that was refused, the rest is examined.
        """
        weights = self._residual_weights(layer.merge, scope)
        output = self._body(layer.body, current, scope)
        result = self._sum([current, output], weights, layer.merge, scope)
        return result if result.shape is not None else Value(result.name, current.shape)

    def _residual_weights(self, merge: ast.Call, scope: Scope) -> tuple[Scalar, ...]:
        kind, arguments = merge.name.text, merge.arguments
        if kind == "convex" and len(arguments) == 1:
            part = scope.scalar(arguments[0].value)
            if isinstance(part, Fraction) and not 0 <= part <= 1:
                raise Problem("LIP012", "the weight of `convex` lies between 0 and 1", merge.at)
            return (combine("-", ONE, part), part)
        if kind in ("add", "mean") and not arguments:
            return (ONE, ONE) if kind == "add" else (ONE / 2, ONE / 2)
        raise Problem("LIP012", "a residual is `add`, `mean` or `convex(t)`", merge.at)

    def _merge(self, merge: ast.Call, outputs: Sequence[Value], scope: Scope) -> Value:
        kind = merge.name.text
        if kind in ("add", "mean") and not merge.arguments:
            weight = ONE if kind == "add" else ONE / len(outputs)
            return self._sum(outputs, (weight,) * len(outputs), merge, scope)
        if kind in _MERGES and not merge.arguments:
            return self._merged(merge, outputs, scope)
        if kind != "concat":
            listed = ", ".join(f"`{name}`" for name in ("add", "mean", *_MERGES))
            raise Problem("LIP012", f"branches end in {listed} or `concat(axis=…)`", merge.at)
        named = {a.name.text: scope.argument(a.value) for a in merge.arguments if a.name}
        positional = [scope.argument(a.value) for a in merge.arguments if a.name is None]
        try:
            attributes = bind(Concat, positional, named, rank=0)
        except ArgumentError as error:
            raise Problem("LIP012", f"`concat`: {error.message}", merge.at, error.help) from None
        return self.builder.add(CONCAT, attributes, outputs, name="concat", location=merge.at, scope=scope.path)

    def _merged(self, merge: ast.Call, outputs: Sequence[Value], scope: Scope) -> Value:
        name = merge.name.text
        op, most = _MERGES[name], _MERGES[name].operands[1]
        if most is not None and len(outputs) > most:
            message = f"`{name}` takes {most} branches, not {len(outputs)}"
            raise Problem("LIP012", message, merge.at, "put one `branch` into another")
        return self.builder.add(op, NoAttributes(), outputs, name=name, location=merge.at, scope=scope.path)

    def _sum(self, operands: Sequence[Value], weights: tuple[Scalar, ...], merge: ast.Call, scope: Scope) -> Value:
        name = merge.name.text
        return self.builder.add(SUM, Sum(weights), operands, name=name, location=merge.at, scope=scope.path)

    def _split(self, call: ast.Call, targets: Sequence[ast.Name], current: Value, scope: Scope) -> list[Value]:
        """`a, b = split(x, 2, axis=0)`: equal parts along an axis (the features by default), one name each."""
        operands, arguments = operands_of(call, OP_BY_NAME["slice"], current, scope)
        named = {argument.name.text: argument.value for argument in arguments if argument.name}
        counts = [argument.value for argument in arguments if argument.name is None]
        parts = scope.integer(counts[0], "the number of parts") if counts else len(targets)
        if len(counts) > 1 or set(named) - {"axis"} or not targets or parts != len(targets):
            raise Problem("LIP012", "`split` is written a, b = split(x, 2, axis=0), one name a part", call.at)
        if operands[0].shape is None:
            return [POISONED] * parts
        slices = _equal_parts(operands[0].shape, parts, named.get("axis"), call, scope)
        return [
            self.builder.add(
                OP_BY_NAME["slice"], part, operands, name=name.text, location=name.at, scope=scope.path
            )
            for name, part in zip(targets, slices, strict=True)
        ]


def _refused(item: ast.Item, scope: Scope) -> Scope:
    """Return the scope behind a declaration that was refused: its name is known, what rests on it is skipped."""
    if isinstance(item, ast.Param) and item.name.text not in scope.numbers:
        return scope.with_number(item.name.text, None)
    if isinstance(item, ast.InputLine) and item.name.text not in scope.values:
        scope.define(item.name.text, POISONED)
    return scope


def _times(count: Scalar, copies: Scalar) -> Scalar:
    return count if copies == 1 else combine("*", count, copies)


def _give(count: Scalar) -> str:
    return f"give the count: --set {next(symbols_of(count)).name}=12"


def _check_free(name: ast.Name) -> None:
    if is_derived(name.text):
        raise Problem("LIP013", f"`{name.text}` is a name that formulas use", name.at, "choose another name")


def _equal_parts(
    shape: Shape, parts: int, axis: ast.Expression | None, call: ast.Call, scope: Scope
) -> list[Slice]:
    try:
        wanted = None if axis is None else bind(Concat, (scope.argument(axis),), {}, rank=0).axis
        along = feature_axis(wanted, shape)
    except (ArgumentError, Refusal) as error:
        raise Problem("LIP012", error.message, call.at, error.help) from None
    size = shape[along]
    if size % parts:
        raise Problem("LIP102", f"axis {along} of size {size} does not split into {parts} equal parts", call.at)
    width = size // parts
    return [Slice(along, i * width, (i + 1) * width) for i in range(parts)]
