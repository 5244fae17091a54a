"""The requirements pass: R1 Lipschitz loss, R2 bounded input, R3 Lipschitz layers under projection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from lipcompile.analysis.depth.loops import loops
from lipcompile.core.derivation import NOT_REACHED, Requirement, Requirements
from lipcompile.core.graph import Graph, Node
from lipcompile.core.record import ConstraintKind
from lipcompile.diagnostics import Diagnostic, Severity
from lipcompile.numbers import text
from lipcompile.ops.merge.rules import SUM
from lipcompile.ops.normalisation.rules import squared_slope

# The first digits of a code say which requirement an error breaks, if any; what is not listed concerns the layers.
_LOSS, _INPUT, _PLAN = "LIP21", "LIP20", "LIP40"
# Ops without parameters that stand in the place of layers with frozen ones.
_TRANSFORMS = (
    *("colour_space", "hsv", "scattering2d"),
    *("whitened_scattering2d", "mirrored_scattering2d", "whitened_patches"),
)
# Of the names of layers that are shown.
_MOST_SHOWN = 8
# Losses that turn logits into probabilities themselves.
_OF_LOGITS = ("cross_entropy", "token_cross_entropy", "pixel_cross_entropy", "bce", "multilabel_bce")
_SQUARES = ("squared_error", "mean_squared_error")
# A norm that stretches by more is warned of.
_LARGE_SLOPE = 10
_OF_DEVIATIONS = "give it a floor of the size of usual deviations: floor=0.5 multiplies by 2"
_OF_LENGTHS = "give it a floor of the size of usual lengths: F.normalize(x, eps=0.5) multiplies by 2"


def examine(graph: Graph) -> Iterator[Diagnostic]:
    """Yield what is wrong or missing in a well-typed graph."""
    yield from _loss(graph)
    yield from _input(graph)
    yield from _parameters(graph)
    yield from _layers(graph.proved(), frozenset())


def _layers(graph: Graph, entering: frozenset[str]) -> Iterator[Diagnostic]:
    """Yield what is wrong with layers, those in loops as well; trained parameters reach what is `entering`."""
    trained = trained_values(graph, entering)
    yield from _maps_of_shared_weights(graph)
    yield from _jumps(graph, trained)
    yield from _norms_of_large_slope(graph, trained)
    for node in loops(graph):
        body = node.attributes.body
        # What a copy trains stands before the next copy.
        yield from _layers(body, frozenset({body.input.name} if node.name in trained else ()))


def requirements(graph: Graph | None, diagnostics: Sequence[Diagnostic]) -> Requirements:
    """Summarise: a requirement fails if an error of its kind was found, or kept it from being examined."""
    errors = [d for d in diagnostics if d.severity == Severity.ERROR]
    loss = [d for d in errors if d.code.startswith(_LOSS)]
    source = [d for d in errors if d.code.startswith(_INPUT)]
    layers = [d for d in errors if d not in loss and d not in source and not d.code.startswith(_PLAN)]
    return Requirements(
        lipschitz_loss=_requirement(_first(loss), _loss_detail, graph),
        bounded_input=_requirement(_first(source), _input_detail, graph),
        lipschitz_layers=_requirement(_layer_errors(layers), _layer_detail, graph),
    )


def _requirement(problem: str, detail: Callable[[Graph], str], graph: Graph | None) -> Requirement:
    said = NOT_REACHED if graph is None else detail(graph)
    return Requirement(not problem and graph is not None, problem or said)


def _loss(graph: Graph) -> Iterator[Diagnostic]:
    if graph.loss is None:
        yield Diagnostic(
            "LIP213",
            "no loss is declared: bounds stay symbolic in its Lipschitz constant L",
            "declare one: --loss cross_entropy",
            Severity.NOTE,
        )
    elif (last := probabilities(graph)) is not None:
        yield last.diagnostic(
            "LIP214",
            f"`{last.name}` returns probabilities, but {graph.loss.loss.name} takes logits and contains "
            "the softmax or sigmoid itself",
            f"remove the last {last.op.name}, as `lipcompile fix` does",
            Severity.WARNING,
        )
    elif graph.loss.loss.name in _SQUARES and graph.loss.attributes.target_norm is None and proves(graph):
        yield Diagnostic(
            "LIP212",
            f"{graph.loss.loss.name} has no Lipschitz constant without a bound of the targets",
            f"give a bound of ‖t‖, {graph.loss.loss.name}:target_norm=1, or clip: --bounds clip",
            location=graph.loss.location,
        )
    elif graph.loss.loss.name == "own" and proves(graph):
        yield Diagnostic(
            "LIP212",
            "a function of Python has no Lipschitz constant that is known",
            "clip: --bounds clip",
            location=graph.loss.location,
        )


def proves(graph: Graph) -> bool:
    """Whether theorems bound any gradient of the graph."""
    return not graph.clips or any(p.trainable for p in graph.proved().parameters.values())


def probabilities(graph: Graph) -> Node | None:
    """Return the last node if it makes probabilities for a loss that makes them itself."""
    if graph.loss is None or graph.loss.loss.name not in _OF_LOGITS or graph.output == graph.input.name:
        return None
    last = graph.node(graph.output)
    return last if last.op.name in ("sigmoid", "softmax") else None


def _input(graph: Graph) -> Iterator[Diagnostic]:
    norm, location = graph.input.norm, graph.input.location
    if norm is None and not graph.input.tokens and proves(graph):
        message = "no input norm is declared: bounds stay symbolic in X_0"
        help_line = "declare one: --input-norm 1.0; or clip gradients, which needs none: --bounds auto"
        yield Diagnostic("LIP201", message, help_line, Severity.NOTE, location=location)


def _parameters(graph: Graph) -> Iterator[Diagnostic]:
    if not any(parameter.trainable for parameter in graph.parameters.values()):
        yield Diagnostic(
            "LIP307",
            "no parameter is trained, so there is no gradient to bound",
            "add a dense or convolutional layer, or freeze less",
            Severity.WARNING,
        )


def _maps_of_shared_weights(graph: Graph) -> Iterator[Diagnostic]:
    """A constraint is certified for one linear map: a weight that two different maps use would escape it.

    Ops that read a plain matrix may share it, where its constraint bounds what each of them makes of it. A weight
    without a constraint is that of one layer at inputs of any size.
    """
    first: dict[str, tuple[Node, str]] = {}
    for node in graph.nodes:
        for role, name in node.parameters.items():
            other, first_role = first.setdefault(name, (node, role))
            kind = graph.parameters[name].constraint.kind
            if _is_one_map(other, node, kind):
                continue
            is_of_reals = len(node.parameters) == 1 and node.op.takes == "reals"
            if not is_of_reals or not other.op.parameter(first_role).may_share(node.op.parameter(role), kind):
                yield node.diagnostic(
                    "LIP308",
                    f"`{name}` is shared by `{other.name}` and `{node.name}`, which are different maps",
                    "use --bounds clip, under which dense layers and embeddings may share a matrix, and layers of "
                    "equal attributes one weight that is trained, at inputs of any size",
                )


def _is_one_map(one: Node, other: Node, kind: ConstraintKind) -> bool:
    """Whether nodes are the same layer; a constraint of rows, or none, holds for operands of several sizes."""
    if (one.op, one.attributes) != (other.op, other.attributes):
        return False
    is_of_any_size = one.op.any_size and (kind == "free" or one.op.takes == "tokens")
    return one.site == other.site or is_of_any_size


def _jumps(graph: Graph, trained: frozenset[str]) -> Iterator[Diagnostic]:
    """R3: no trainable parameter stands upstream of an op that is not Lipschitz."""
    for node in graph.nodes:
        if node.op.lipschitz is None and any(operand in trained for operand in node.inputs):
            yield node.diagnostic(
                "LIP111",
                f"`{node.op.name}` is not Lipschitz, and gradients would have to cross it",
                "freeze every layer before it, or replace it",
            )


def _norms_of_large_slope(graph: Graph, trained: frozenset[str]) -> Iterator[Diagnostic]:
    """A norm that divides by almost nothing makes the bounds of all trained parameters before it vacuous."""
    for found in scaled_norms(graph):
        node = found.node
        if found.square > _LARGE_SLOPE**2 and node.inputs[0] in trained:
            yield node.diagnostic(
                "LIP112",
                f"vacuous: `{node.name}` multiplies the gradient bounds of all parameters before it by "
                f"{_root(found.square):.4g}",
                _OF_LENGTHS if found.is_direction else _OF_DEVIATIONS,
                Severity.WARNING,
            )


def _root(square: Fraction) -> Decimal:
    """Return about √square, which may lie beyond doubles."""
    return (Decimal(square.numerator) / Decimal(square.denominator)).sqrt()


def trained_values(graph: Graph, entering: frozenset[str]) -> frozenset[str]:
    """Return the values that a trainable parameter or what is `entering` reaches: those a cotangent must reach."""
    found = set(entering)
    for node in graph.nodes:
        trained = any(graph.parameters[name].trainable for name in node.parameters.values())
        if trained or any(operand in found for operand in node.inputs):
            found.add(node.name)
    return frozenset(found)


def frozen_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes that no trained parameter reaches: no cotangent crosses them.

    Empty if they have no parameters themselves and do no more than what precedes any network, as `flatten` does.
    """
    trained = trained_values(graph, frozenset())
    found = tuple(node for node in graph.nodes if node.name not in trained)
    return found if any(node.parameters or node.op.name in _TRANSFORMS for node in found) else ()


def _first(errors: Sequence[Diagnostic]) -> str:
    return errors[0].message if errors else ""


def _layer_errors(errors: Sequence[Diagnostic]) -> str:
    if not errors:
        return ""
    return f"{_counted(len(errors), 'problem')}: {_some([d.node or d.op or d.code for d in errors])}"


def _some(names: Sequence[str]) -> str:
    """Return the first names, and the last."""
    found = list(dict.fromkeys(names))
    return ", ".join(found if len(found) <= _MOST_SHOWN else [*found[: _MOST_SHOWN - 2], "…", found[-1]])


def _loss_detail(graph: Graph) -> str:
    if not proves(graph):
        return "not needed: every gradient is clipped"
    return (
        f"{graph.loss.loss.name} is Lipschitz in the output"
        if graph.loss
        else "no loss declared: L stays a symbol"
    )


def _input_detail(graph: Graph) -> str:
    if not proves(graph):
        return "not needed: every gradient is clipped"
    if graph.input.tokens:
        return "every example is a row of tokens: its embedding is bounded by the table"
    norm = graph.input.norm
    bound = "X_0, not declared" if norm is None else text(norm)
    how = "trusted to satisfy" if graph.input.trusted else "clipped to"
    return f"every example is {how} ‖x‖ <= {bound}"


def _layer_detail(graph: Graph) -> str:
    trained = sum(parameter.trainable for parameter in graph.parameters.values())
    layers, parameters = _counted(len(graph.nodes), "layer"), _counted(trained, "trained parameter")
    if not proves(graph):
        return f"not needed: {layers}, none of which mixes examples; {parameters}, clipped"
    detail = f"{layers}, each Lipschitz; {parameters}, projected after each step"
    frozen = [node.name for node in frozen_nodes(graph)]
    return f"{detail}; no sensitivity: {_some(frozen)}" if frozen else detail


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# Norms, the number by which what they return is multiplied, and how much the two stretch together


@dataclass(frozen=True, slots=True)
class ScaledNorm:
    """A norm or a projection on a ball, and the multiplication that alone reads it, None if there is none.

    factor: of the multiplication, 1 without. square: of the Lipschitz constant of the two together.
    """

    node: Node
    behind: Node | None
    factor: Fraction
    square: Fraction

    @property
    def is_direction(self) -> bool:
        """Whether this is c·x/max(r, ‖x‖), the norm over the whole example."""
        return self.node.op.name == "clip_norm"


def scaled_norms(graph: Graph) -> Iterator[ScaledNorm]:
    """Yield the norms of a graph that divide by a known number at least, and its projections on balls.

    x/max(r, ‖x‖) is a projection on a ball of radius r, which stretches nothing, times 1/r.
    """
    behind = _multiplications(graph)
    for node in graph.nodes:
        own = Fraction(1) if node.op.name == "clip_norm" else squared_slope(node.attributes)
        if own is not None:
            after = behind.get(node.name)
            factor = Fraction(1) if after is None else abs(after.attributes.weights[0])
            yield ScaledNorm(node, after, factor, own * factor**2)


def _multiplications(graph: Graph) -> dict[str, Node]:
    """Return, by their operands, multiplications with known numbers other than 0 that alone read them."""
    read = Counter([graph.output, *(name for node in graph.nodes for name in node.inputs)])
    sums = [node for node in graph.nodes if node.op is SUM and len(node.inputs) == 1]
    weights = {node.inputs[0]: (node, node.attributes.weights[0]) for node in sums if read[node.inputs[0]] == 1}
    return {name: node for name, (node, weight) in weights.items() if isinstance(weight, Fraction) and weight != 0}
