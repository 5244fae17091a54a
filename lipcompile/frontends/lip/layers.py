"""One layer call of .lip -> one node: spelling, operands, attributes, parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from lipcompile.core.graph import LENGTH, REGULARISER, ClipGroup, GraphBuilder, ParameterChoice, Value
from lipcompile.core.record import FREE, AnyOp, Constraint, ConstraintKind, ParameterRule, Shape, Spelling
from lipcompile.diagnostics import Refusal
from lipcompile.frontends.lip import syntax as ast
from lipcompile.frontends.lip.scope import Problem, Scope
from lipcompile.frontends.lip.starting import starts_at_zero, zeroed
from lipcompile.frontends.options import ModelOptions
from lipcompile.ops.conv.rules import CONV
from lipcompile.ops.linear.rules import BIAS, BiasShape
from lipcompile.ops.merge.rules import SUM, Sum
from lipcompile.ops.registry import layers
from lipcompile.ops.rules import feature_axis
from lipcompile.ops.schema import Argument, ArgumentError, bind, check_names, suggest

# C, and γ of a clip without a threshold.
Clip = tuple[Fraction, Fraction | None]

# Layers that stand for several nodes; `lowering` expands them.
SUGAR = ("split", "rnn", "gru", "lstm", "onnx")
UNIT = Constraint("spectral", Fraction(1))


@dataclass(slots=True)
class LayerLowering:
    """Turns calls into nodes of `builder`.

    closed: `share` labels on the other side of the border of a repetition whose count is open.
    """

    builder: GraphBuilder
    options: ModelOptions
    closed: set[str] = field(default_factory=set)
    _labelled: dict[str, Labelled] = field(default_factory=dict)

    def inside(self, builder: GraphBuilder) -> LayerLowering:
        """Return what lowers the body of such a repetition."""
        return LayerLowering(builder, self.options, self.labels | self.closed)

    @property
    def labels(self) -> set[str]:
        """The labels that the file gives."""
        return {label for label in self._labelled if not label.startswith('"')}

    def shared(self) -> set[str]:
        """Return the parameters that have a label of the file."""
        return {
            f"{first.node}.{role}"
            for label, first in self._labelled.items()
            if label in self.labels
            for role in first.choices
        }

    def lower(self, call: ast.Call, current: Value, scope: Scope, target: str | None) -> Value:
        """Add the node of `call`, whose name is one of `registry.layers()`; raises `Problem`."""
        op, spelling = layers()[call.name.text]
        operands, arguments = operands_of(call, op, current, scope)
        named = {argument.name.text: argument.value for argument in arguments if argument.name}
        positional = [scope.argument(argument.value) for argument in arguments if argument.name is None]
        label = _label(op, named, scope, call)
        clip = _clip(op, named, scope, call)
        from_zero = starts_at_zero(op, named, scope, call)
        kept = {"constraint", "bound", "bias"} & named.keys()
        parameters = self._parameters(op, call, named, positional, scope)
        parameters = parameters if clip is None else _loosened(op, parameters, kept)
        values = {name: scope.argument(expression) for name, expression in named.items()}
        values |= {name: Fraction(value) for name, value in spelling.preset}
        shapes = tuple(operand.shape for operand in operands if operand.shape is not None)
        if len(shapes) != len(operands):
            _check_names(op, call, arguments)
            return Value(call.name.text, None)
        attributes = _attributes(Given(op, spelling, tuple(positional), values, shapes), call)
        tied = self._tied(label, op, parameters, clip, call)
        value = self.builder.add(
            op,
            attributes,
            operands,
            name=target or call.name.text,
            location=call.at,
            parameters=zeroed(op, attributes, shapes, tied, call) if from_zero else tied,
            scope=scope.path,
        )
        if clip is not None:
            self._clip_all(value, *clip)
        if label is not None and value.shape is not None:
            self._labelled.setdefault(label, Labelled(op, value.name, parameters, clip))
        return value

    def _clip_all(self, value: Value, length: Fraction, regulariser: Fraction | None) -> None:
        """Clip the trained parameters of a layer that no other layer has brought, as one group."""
        node = self.builder.made(value)
        if node is None:
            return
        prefix = f"{node.name}."
        own = tuple(name for name in node.parameters.values() if name.startswith(prefix))
        self.builder.clip(ClipGroup(node.name, own, length, regulariser))

    def _parameters(
        self, op: AnyOp, call: ast.Call, named: dict[str, ast.Expression], positional: list[Argument], scope: Scope
    ) -> dict[str, ParameterChoice]:
        """Take the arguments that declare constraints out of the others: the node's parameters."""
        arguments = {rule.argument for rule in op.parameters}
        given: dict[str, Argument] = {}
        declared = self._constraint(named.pop("constraint", None) if "constraint" in arguments else None, scope)
        if "bound" in arguments:
            named_bound = scope.argument(named.pop("bound")) if "bound" in named else Fraction(1)
            given["bound"] = positional.pop(0) if positional and _leads(op) else named_bound
        if "bias" in arguments and "bias" in named:
            given["bias"] = scope.argument(named.pop("bias"))
        chosen = {rule.role: self._choice(rule, declared, given, scope, call) for rule in op.parameters}
        return {role: choice for role, choice in chosen.items() if choice is not None}

    def _choice(
        self,
        rule: ParameterRule[Any],
        declared: tuple[Constraint, bool],
        given: Mapping[str, Argument],
        scope: Scope,
        call: ast.Call,
    ) -> ParameterChoice | None:
        """Return the choice for one parameter, None for an optional one that is not asked for."""
        if rule.argument == "constraint":
            constraint, fixed = declared
            return ParameterChoice(constraint, trainable=not (scope.frozen or fixed))
        if rule.argument is None:
            return ParameterChoice(Constraint(rule.constraints[0], Fraction(0)), trainable=not scope.frozen)
        bound = given.get(rule.argument, False)
        return None if bound is False and rule.optional else self._radius(rule, bound, scope, call)

    def _constraint(self, expression: ast.Expression | None, scope: Scope) -> tuple[Constraint, bool]:
        """Return the constraint, and whether it fixes the weight; the command line overrides the set, not that."""
        declared, fixed = (UNIT, False) if expression is None else _declared_constraint(expression, scope)
        chosen = self.options.constraint
        return (chosen if isinstance(chosen, Constraint) else declared), fixed

    def _radius(self, rule: ParameterRule[Any], bound: Argument, scope: Scope, call: ast.Call) -> ParameterChoice:
        """Return a parameter within the declared bound; that of the command line overrides it for biases."""
        if bound is True and rule.optional and self.options.bias_bound is None:
            return ParameterChoice(FREE, trainable=not scope.frozen)
        if isinstance(bound, bool | str | tuple):
            message = f"the {rule.role} needs the bound of its size"
            write = "write bias=0.5 for ‖b‖ <= 0.5, or true, or false" if rule.optional else "write a number"
            raise Problem("LIP012", message, call.at, write)
        bias = rule.role == "bias" and self.options.bias_bound is not None
        chosen = self.options.bias_bound if bias and self.options.bias_bound is not None else bound
        return ParameterChoice(Constraint(rule.constraints[0], chosen), trainable=not scope.frozen)

    def _tied(
        self, label: str | None, op: AnyOp, own: dict[str, ParameterChoice], clip: Clip | None, call: ast.Call
    ) -> dict[str, ParameterChoice]:
        """Let a layer with a `share` label use the parameters of the first layer that has it."""
        if label in self.closed:
            message = f"`{label}` is shared across the border of a repetition whose count is open"
            raise Problem("LIP014", message, call.at, "give the count with --set, or use another label")
        if label is None or label not in self._labelled:
            return own
        first = self._labelled[label]
        alike = (first.op, first.choices) == (op, own)
        roles = {role: role for role in own} if alike else first.matrix(op, own)
        if not roles or first.clip != clip:
            message = f"layers that share `{label}` must be of one kind, with the same constraints and clips"
            help_line = (
                "give them equal arguments, or another label; dense, dense_transpose and embedding may share"
            )
            raise Problem("LIP012", message, call.at, f"{help_line} a matrix: write biases as layers after them")
        return {role: replace(own[role], shared=f"{first.node}.{other}") for role, other in roles.items()}


def _leads(op: AnyOp) -> bool:
    """Whether the bound is the first argument: not where attributes have to be given, as embedding(100, 16)."""
    return op is BIAS or all(attribute.default is not MISSING for attribute in fields(op.attributes))


@dataclass(frozen=True, slots=True)
class Labelled:
    """The first layer that a `share` label names."""

    op: AnyOp
    node: str
    choices: Mapping[str, ParameterChoice]
    clip: Clip | None

    def matrix(self, op: AnyOp, own: Mapping[str, ParameterChoice]) -> dict[str, str]:
        """Return the role of the matrix of a layer of another kind, with that of the same matrix here; none if the
        layer has other parameters, or cannot use the matrix as it is constrained.

        Constraints of different kinds are left to the analysis: clips replace them.
        """
        first, second = ([rule for rule in one.parameters if rule.is_matrix] for one in (self.op, op))
        if not first or not second or [*own] != [second[0].role]:
            return {}
        (mine, theirs) = self.choices[first[0].role], own[second[0].role]
        comparable = theirs.constraint.kind in (*first[0].constraints, "free")
        alike = mine.trainable == theirs.trainable and (mine.constraint == theirs.constraint or not comparable)
        return {second[0].role: first[0].role} if alike else {}


def _label(op: AnyOp, named: dict[str, ast.Expression], scope: Scope, call: ast.Call) -> str | None:
    """Take the `share` label out of the arguments of a layer with parameters."""
    if not op.parameters or "share" not in named:
        return None
    label = scope.argument(named.pop("share"))
    if not isinstance(label, str):
        raise Problem("LIP012", "`share` takes a label", call.at, 'write share="stem" on each of the layers')
    return label


def _clip(op: AnyOp, named: dict[str, ast.Expression], scope: Scope, call: ast.Call) -> Clip | None:
    """Take `clip` out of the arguments of a layer with parameters."""
    if not op.parameters or "clip" not in named:
        return None
    length = scope.argument(named.pop("clip"))
    if scope.frozen:
        message = f"`{op.name}` is frozen: it has no gradient to clip"
        raise Problem("LIP318", message, call.at, "leave `clip=` out, or take the layer out of `frozen`")
    if length == "automatic":
        return LENGTH, REGULARISER
    if not isinstance(length, Fraction) or not ClipGroup.has_length(length):
        message = "a clip is the length of a gradient, a number from 1e-9 to 1e9, or `automatic`"
        raise Problem("LIP012", message, call.at, "write clip=automatic")
    return length, None


def _loosened(
    op: AnyOp, parameters: Mapping[str, ParameterChoice], kept: Collection[str]
) -> dict[str, ParameterChoice]:
    """Return the parameters of a clipped layer: nothing constrains them but arguments that were given."""
    return {
        role: choice if op.parameter(role).argument in kept else replace(choice, constraint=FREE)
        for role, choice in parameters.items()
    }


def _declared_constraint(expression: ast.Expression, scope: Scope) -> tuple[Constraint, bool]:
    call = ast.Call(expression, ()) if isinstance(expression, ast.Name) else expression
    if not isinstance(call, ast.Call) or call.name.text not in CONSTRAINTS:
        near = suggest(call.name.text, list(CONSTRAINTS)) if isinstance(call, ast.Call) else ""
        help_line = near or f"use {', '.join(CONSTRAINTS)}"
        raise Problem("LIP012", "this is no constraint", expression.at, help_line)
    kind, fixed = CONSTRAINTS[call.name.text]
    if len(call.arguments) > (0 if call.name.text in ("orthogonal", "fixed") else 1):
        raise Problem("LIP012", f"`{call.name.text}` has too many arguments", call.at)
    if call.name.text == "frobenius" and not call.arguments:
        raise Problem("LIP012", "`frobenius` needs its bound", call.at, "write frobenius(2.0)")
    bound = scope.scalar(call.arguments[0].value) if call.arguments else Fraction(1)
    return Constraint(kind, bound), fixed


# By name: the set of allowed weights, and whether they are left untrained.
CONSTRAINTS: Mapping[str, tuple[ConstraintKind, bool]] = {
    "spectral": ("spectral", False),
    "orthogonal": ("orthogonal", False),
    "frobenius": ("frobenius", False),
    "fixed": ("spectral", True),
}


# What people write first, and what serves here.
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("linear", "fc", "gemm"), "write dense(features)"),
    **dict.fromkeys(("conv", "convolution"), "write conv1d, conv2d or conv3d"),
    **dict.fromkeys(("conv_transpose", "deconv"), "write conv_transpose1d, conv_transpose2d or conv_transpose3d"),
    **dict.fromkeys(("interpolate", "resize"), "write upsample(2), with mode=nearest, bilinear or bicubic"),
    **dict.fromkeys(("maxpool", "max_pool2d", "maxpool2d"), "write max_pool(2)"),
    **dict.fromkeys(("avgpool", "avg_pool2d", "avgpool2d"), "write avg_pool(2)"),
    **dict.fromkeys(
        ("batchnorm", "batch_norm", "batchnorm1d", "batchnorm2d"),
        "it couples examples (LIP101): write group_norm(1, floor=1), scale and bias(1), as `lipcompile fix` does",
    ),
    **dict.fromkeys(("layernorm", "norm"), "write layer_norm(floor=0.5)"),
    **dict.fromkeys(("groupnorm",), "write group_norm(4, floor=0.5)"),
    **dict.fromkeys(("instancenorm", "instancenorm2d"), "write instance_norm(floor=0.5)"),
    **dict.fromkeys(("rmsnorm",), "write rms_norm(floor=0.5)"),
    **dict.fromkeys(("logsoftmax",), "write log_softmax, with the loss nll; or neither, with cross_entropy"),
    **dict.fromkeys(("local_response_norm", "localresponsenorm"), "write lrn(5)"),
    **dict.fromkeys(("hardswish", "hard_silu"), "write hard_swish"),
    **dict.fromkeys(("threshold", "thresholded_relu"), "it jumps at its threshold: use relu, or clip(low, high)"),
}


def unknown_layer(name: ast.Name, blocks: Sequence[str]) -> Problem:
    """Return the problem of a layer that does not exist, with what serves in its place."""
    known = [*layers(), *SUGAR, *blocks]
    some = f"grammar/README.md has all {len(known)}, such as dense, conv2d, relu, groupsort and max_pool"
    help_line = _ELSEWHERE.get(name.text.lower()) or suggest(name.text, known) or some
    return Problem("LIP011", f"unknown layer `{name.text}`", name.at, help_line, node=name.text)


def operands_of(call: ast.Call, op: AnyOp, current: Value, scope: Scope) -> tuple[list[Value], list[ast.Argument]]:
    """Split leading names of tensors from the other arguments; without any, the value above is the operand."""
    arguments = list(call.arguments)
    operands: list[Value] = []
    while arguments and arguments[0].name is None and isinstance(arguments[0].value, ast.Name):
        name = arguments[0].value
        if name.text not in scope.values:
            if name.text in scope.numbers:
                break
            if name.text in scope.hidden:
                message = f"`{name.text}` stands outside of a repetition whose count is open"
                raise Problem("LIP014", message, name.at, "give the count with --set: then every copy may read it")
            known = [*scope.values, *scope.numbers]
            raise Problem("LIP011", f"unknown name `{name.text}`", name.at, suggest(name.text, known))
        operands.append(scope.values[name.text])
        del arguments[0]
    most = op.operands[1]
    if most is not None and len(operands) > most:
        takes = "one tensor" if most == 1 else f"at most {most} tensors"
        raise Problem("LIP012", f"`{call.name.text}` takes {takes}, not {len(operands)}", call.at)
    alone = any(argument.name is not None and argument.name.text == "weights" for argument in arguments)
    least = 2 if most is None else op.operands[0]
    if least > 1 and len(operands) < least and not alone:
        needed = "two or more" if most is None else {2: "two", 3: "three"}.get(least, str(least))
        raise Problem("LIP012", f"`{call.name.text}` needs the names of {needed} tensors", call.at)
    return operands or [current], arguments


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of a layer call, evaluated, beside the shapes of its operands."""

    op: AnyOp
    spelling: Spelling
    positional: tuple[Argument, ...]
    named: Mapping[str, Argument]
    shapes: tuple[Shape, ...]

    def bind(self, positional: Sequence[Argument] | None = None, **changes: Argument) -> Any:
        """Build the attribute record, with some arguments changed; raises `ArgumentError`."""
        first = self.shapes[0]
        rank = self.spelling.rank if self.spelling.rank is not None else max(len(first) - 1, 0)
        chosen = self.positional if positional is None else positional
        return bind(self.op.attributes, chosen, {**self.named, **changes}, rank, parameter_arguments(self.op))


def parameter_arguments(op: AnyOp) -> tuple[str, ...]:
    """Return the arguments of a layer that are about its parameters: constraints, bounds, labels, clips."""
    declared = [rule.argument for rule in op.parameters if rule.argument is not None]
    own = (*dict.fromkeys(declared), "share", "clip") if op.parameters else ()
    return (*own, "start") if "constraint" in own else own


def _check_names(op: AnyOp, call: ast.Call, arguments: Sequence[ast.Argument]) -> None:
    """Check what can be checked of a layer whose operands were refused: the names of its arguments."""
    own = parameter_arguments(op)
    named = [argument.name.text for argument in arguments if argument.name and argument.name.text not in own]
    try:
        check_names(op.attributes, named, own)
    except ArgumentError as error:
        raise argument_problem(error, call) from None


def _attributes(given: Given, call: ast.Call) -> Any:
    try:
        return _SPECIAL.get(given.op.name, Given.bind)(given)
    except ArgumentError as error:
        raise argument_problem(error, call) from None
    except Refusal as refusal:
        raise Problem(refusal.code, refusal.message, call.at, refusal.help, node=call.name.text) from None


def argument_problem(error: ArgumentError, call: ast.Call) -> Problem:
    """Return the problem of a call with a wrong argument, at that argument."""
    at = call.at
    for argument in call.arguments:
        if argument.name is not None and argument.name.text == error.argument:
            at = argument.name.at
    code = "LIP014" if error.help.startswith("add --set") else "LIP012"
    return Problem(code, f"`{call.name.text}`: {error.message}", at, error.help, node=call.name.text)


def _sum(given: Given) -> Sum:
    """One weight per operand: 1 for `add`, unless `weights` gives them, an equal share for `mean`."""
    if given.spelling.name == "add" and "weights" in given.named:
        weighted: Sum = given.bind()
        return weighted
    if given.positional or given.named:
        raise ArgumentError("add", "takes the names of tensors, and `add` also weights=(…), a number for each")
    count = len(given.shapes)
    return Sum((Fraction(1, count if given.spelling.name == "mean" else 1),) * count)


def _conv(given: Given) -> Any:
    """Resolve `padding="same"`: the output has the size of the input, the odd zero goes behind."""
    if given.named.get("padding") != "same":
        return given.bind()
    bare = given.bind(padding=Fraction(0))
    if any(step != 1 for step in bare.stride):
        raise ArgumentError("padding", '`padding="same"` needs stride 1', "give the padding as numbers")
    totals = [step * (taps - 1) for step, taps in zip(bare.dilation, bare.kernel, strict=True)]
    return given.bind(padding=tuple((Fraction(total // 2), Fraction(total - total // 2)) for total in totals))


def _integers(given: Given) -> Any:
    """Let `reshape(4, -1)` and `transpose(1, 0)` list their integers without parentheses."""
    listed = bool(given.positional) and not isinstance(given.positional[0], tuple)
    return given.bind((given.positional,)) if listed else given.bind()


def _bias(given: Given) -> BiasShape:
    """One bias entry per feature: the last axis of a vector or a sequence, the channels of an image.

    A `position` is a bias of the whole example; `size` may say any other shape that broadcasts to the example's.
    """
    spelling = given.spelling.name
    if spelling == "bias" and "size" in given.named:
        sized: BiasShape = given.bind()
        return sized
    if given.positional or given.named:
        raise ArgumentError(spelling, "takes the bound of its norm and nothing else", f"write {spelling}(0.5)")
    shape = given.shapes[0]
    if spelling == "position":
        return BiasShape(shape)
    axis = feature_axis(None, shape)
    return BiasShape((shape[axis], *(1 for _ in shape[axis + 1 :])))


_SPECIAL: Mapping[str, Callable[[Given], Any]] = {
    SUM.name: _sum,
    CONV.name: _conv,
    BIAS.name: _bias,
    "expand": _integers,
    "reshape": _integers,
    "transpose": _integers,
}
