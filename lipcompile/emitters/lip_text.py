"""One node as a layer call of .lip: its spelling, and the arguments that are not their defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from fractions import Fraction
from typing import Any

from lipcompile.core.graph import LENGTH, REGULARISER, ClipGroup, LossUse, Node, Parameter
from lipcompile.core.record import FREE, Constraint, Shape, Spelling
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import Scalar, text
from lipcompile.ops.linear.rules import BIAS, BiasShape
from lipcompile.ops.merge.rules import SUM
from lipcompile.ops.rules import feature_axis
from lipcompile.ops.schema import Axis, Extra, Padding, PerAxis, default_of, fields_of

ONE = Fraction(1)
UNIT = Constraint("spectral", ONE)
# Layers whose integers are listed without parentheses.
_LISTS = ("expand", "reshape", "transpose")
# How many arguments are written without their names, where it is not the first one that must be given.
_POSITIONAL: Mapping[str, int] = {"embedding": 2, "slice": 0}


def unspeakable(node: Node, why: str, help_line: str = "") -> Refusal:
    """Return the refusal of a node that .lip has no words for."""
    return Refusal("LIP017", f"`{node.name}` cannot be written in .lip: {why}", help_line)


# Spellings


def spelling_of(node: Node) -> Spelling:
    """Return the name of a node's layer; raises `Refusal` if it has none."""
    spellings = {spelling.name: spelling for spelling in node.op.dsl}
    if node.op is SUM:
        weights, count = node.attributes.weights, len(node.attributes.weights)
        return spellings["mean" if count > 1 and set(weights) == {Fraction(1, count)} else "add"]
    if node.op is BIAS:  # a position has an entry for each of an example's, where `bias` itself does not mean that
        size, example = node.attributes.size, node.site.inputs[0]
        return spellings["position" if size == example != features_of(example) else "bias"]
    defaults = {field.name: field.default for field in fields(node.attributes)}
    fitting = [spelling for spelling in node.op.dsl if _fits(node, spelling)]
    preset = [one for one in fitting if any(defaults[name] != value for name, value in one.preset)]
    if not fitting:
        raise unspeakable(
            node, f"the language has no layer for `{node.op.name}`", "write the model as ONNX instead"
        )
    return (preset or fitting)[0]


def features_of(example: Shape) -> Shape:
    """Return the shape of one number for each feature, that broadcasts to the example's; a number has one."""
    if not example:
        return (1,)
    axis = feature_axis(None, example)
    return (example[axis], *(1 for _ in example[axis + 1 :]))


def _fits(node: Node, spelling: Spelling) -> bool:
    kernel = getattr(node.attributes, "kernel", None)
    ranks = (None,) if kernel is None else (None, len(kernel))
    return spelling.rank in ranks and all(
        getattr(node.attributes, name) == value for name, value in spelling.preset
    )


# Calls


def call(
    node: Node,
    operands: Sequence[str],
    parameters: Mapping[str, Parameter],
    share: str | None,
    clip: ClipGroup | None = None,
    *,
    frozen: bool,
) -> str:
    """Return the call of a node on named operands, or on the value above where there are none; raises `Refusal`.

    `frozen`: the call stands where nothing is trained. `share`: the label of its weights. `clip`: of gradients.
    """
    spelling = spelling_of(node)
    positional, named = _arguments(node, spelling)
    own = [] if share is None else [f'share="{share}"']
    own = own if clip is None else [_clip(node, clip), *own]
    own = [*_of_parameters(node, parameters, frozen=frozen, clipped=clip is not None), *own]
    leading = [argument for argument in own if "=" not in argument]
    trailing = [argument for argument in own if "=" in argument]
    written = ", ".join([*operands, *leading, *positional, *named, *trailing])
    return f"{spelling.name}({written})" if written else spelling.name


def loss_call(use: LossUse) -> str:
    """Return the loss as .lip writes it."""
    written = ", ".join(f"{name}={value}" for name, value in _changed(use.attributes, use.loss.attributes, (), 0))
    return f"{use.loss.name}({written})" if written else use.loss.name


def loss_text(use: LossUse) -> str:
    """Return the loss as the command line and the metadata of ONNX files write it: `name:argument=value,…`."""
    written = ",".join(f"{name}={value}" for name, value in _changed(use.attributes, use.loss.attributes, (), 0))
    return f"{use.loss.name}:{written}" if written else use.loss.name


def _arguments(node: Node, spelling: Spelling) -> tuple[list[str], list[str]]:
    """Return the arguments without and with names."""
    attributes, example = node.attributes, node.site.inputs[0] if node.site.inputs else ()
    if isinstance(attributes, BiasShape):
        implied = spelling.name == "position" or attributes.size == features_of(example)
        return [], [] if implied else [f"size={_tuple(node, attributes.size)}"]
    if node.op is SUM:
        plain = spelling.name == "mean" or (len(attributes.weights) > 1 and set(attributes.weights) == {ONE})
        return [], [] if plain else [f"weights={_tuple(node, attributes.weights)}"]
    if spelling.name in _LISTS:
        return [str(size) for field in fields(attributes) for size in getattr(attributes, field.name)], []
    rank = spelling.rank if spelling.rank is not None else max(len(example) - 1, 0)
    preset = {name for name, _ in spelling.preset}
    known = _changed(attributes, node.op.attributes, example, rank)
    given = [(name, value) for name, value in known if name not in preset]
    required = [getattr(attributes, field.name) for field in fields(attributes) if field.default is MISSING]
    leads = bool(required) and not isinstance(required[0], str)  # words are written with their names
    count = _POSITIONAL.get(node.op.name, int(leads))
    return [value for _, value in given[:count]], [f"{name}={value}" for name, value in given[count:]]


def _tuple(node: Node, values: Sequence[Scalar | int]) -> str:
    if not values:
        raise unspeakable(node, "its shape has no axes")
    return _several([text(value) if not isinstance(value, int) else str(value) for value in values])


def _several(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _changed(attributes: Any, record: Any, example: Shape, rank: int) -> Iterator[tuple[str, str]]:
    """Yield the fields of a record that are not their defaults, as the language writes them."""
    values = {name: getattr(attributes, name) for name in fields_of(record)}
    for name, (kind, _) in fields_of(record).items():
        if values[name] != default_of(record, name, values, rank):
            yield name, _written(values[name], kind, example)


def _written(value: Any, kind: Any, example: Shape) -> str:
    if value is None and kind == Axis:
        return str(feature_axis(None, example))
    if isinstance(value, bool):
        return str(value).lower()
    if kind == Padding:
        return _padding(value)
    if kind in (PerAxis, Extra) and len(set(value)) <= 1:
        return str(value[0]) if value else "1"
    if isinstance(value, tuple):
        whole = value or tuple(range(len(example)))  # no axes are all axes
        return _several([_written(item, None, example) for item in whole])
    return value if isinstance(value, str) else text(Fraction(value) if isinstance(value, int) else value)


def _padding(sides: Sequence[tuple[int, int]]) -> str:
    if len({size for side in sides for size in side}) <= 1:  # any number is none, without spatial axes
        return str(sides[0][0]) if sides else "0"
    return _several([str(low) if low == high else f"({low}, {high})" for low, high in sides])


# Parameters


def _clip(node: Node, group: ClipGroup) -> str:
    if (group.length, group.regulariser) == (LENGTH, REGULARISER):
        return "clip=automatic"
    if group.regulariser is not None:
        raise unspeakable(node, "its clip has its own regulariser", "write clip=automatic")
    return f"clip={text(group.length)}"


def _of_parameters(node: Node, parameters: Mapping[str, Parameter], *, frozen: bool, clipped: bool) -> list[str]:
    """Return the arguments that declare constraints; the bound that leads a call has no name.

    Of a clipped layer every constraint is said, and no argument stands for none.
    """
    rules = {rule.role: rule for rule in node.op.parameters}
    own = {role: parameters[name] for role, name in node.parameters.items()}
    weights = [p for role, p in own.items() if rules[role].argument == "constraint"]
    fixed = _fixed(node, own, weights, frozen=frozen)
    written = _constraint(node, weights, fixed=fixed, clipped=clipped)
    for role, parameter in own.items():
        argument, bound = rules[role].argument, text(parameter.constraint.bound)
        free = parameter.constraint == FREE and argument is not None
        if argument == "bias":
            written.append("bias=true" if free else f"bias={bound}")
        elif free and argument != "constraint" and not clipped:
            raise unspeakable(node, f"its {role} has no constraint", "clip it, or give it a bound")
        elif clipped and argument == "bound":
            written += [] if free else [f"bound={bound}"]
        elif argument == "bound" and parameter.constraint.bound != ONE:
            written.append(bound if _leads(node) else f"bound={bound}")
        elif argument == "bound" and node.op is BIAS:
            written.append(bound)
    return written


def _leads(node: Node) -> bool:
    required = any(field.default is MISSING for field in fields(node.attributes))
    return node.op is BIAS or not required


def _fixed(node: Node, own: Mapping[str, Parameter], weights: Sequence[Parameter], *, frozen: bool) -> bool:
    """Whether the weights alone are not trained; raises `Refusal` for another mixture."""
    trained = {role: parameter.trainable for role, parameter in own.items()}
    if not any(trained.values()) and (frozen or not own):
        return False
    if all(trained.values()) and not frozen:
        return False
    others = [p.trainable for p in own.values() if p not in weights]
    if all(others) and all(not p.trainable and p.constraint == UNIT for p in weights) and not frozen:
        return True
    listed = ", ".join(role for role, trains in trained.items() if not trains)
    raise unspeakable(
        node, f"only {listed} of its parameters is frozen", "freeze all parameters of the layer, or none"
    )


def _constraint(node: Node, weights: Sequence[Parameter], *, fixed: bool, clipped: bool) -> list[str]:
    sets = {(p.constraint.kind, p.constraint.bound) for p in weights}
    if len(sets) > 1:
        raise unspeakable(node, "its weights have different constraints", "give them one constraint")
    if fixed:
        return ["constraint=fixed"]
    if weights and weights[0].constraint == FREE and not clipped:
        raise unspeakable(node, "its weights have no constraint", "clip it, or give it a constraint")
    default = FREE if clipped else UNIT
    return [f"constraint={_set(p.constraint)}" for p in weights[:1] if p.constraint != default]


def _set(constraint: Constraint) -> str:
    return "orthogonal" if constraint.kind == "orthogonal" else f"{constraint.kind}({text(constraint.bound)})"
