"""A graph as .lip text. Reading it gives the graph again: the same ops, constraints and bounds.

Parameters keep their names, and so do values that are read by name. The order of the operands of a sum, and names
of values that are handed on to the next statement, may change; a bias that is shared where its weight is not
becomes a layer. Numbers of imported weights have no place in .lip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lipcompile.analysis.depth.loops import Loop, is_loop
from lipcompile.analysis.open_numbers import open_numbers
from lipcompile.core.graph import ClipGroup, Graph, Input, Node
from lipcompile.core.names import Names, identifier
from lipcompile.diagnostics import Diagnostic, InputError, Refusal
from lipcompile.emitters.lip_text import call, loss_call, spelling_of, unspeakable
from lipcompile.frontends.lip.separate_biases import with_separate_biases
from lipcompile.frontends.lip.statements import MERGES, Fork, Item, Outline, Step
from lipcompile.numbers import Symbol, symbols_of, text

INDENT = "    "
# A body is written on one line if that is no longer.
WIDTH = 100
# Words of the grammar, which no value can be called.
_KEYWORDS = frozenset(
    (
        *("import", "block", "model", "param", "input", "norm", "trusted", "loss", "true", "false"),
        *("residual", "branch", "repeat", "frozen", "train", "neighbours", "sampling", "noise", "budget"),
        *("optimizer", "schedule", "physical_batch", "bounds", "augment"),
    )
)


def print_model(graph: Graph, comment: str = "") -> str:
    """Return the text of a file with this model; `comment` goes above it, a line a line.

    Raises:
        InputError: LIP017, the language has no words for a node; all such nodes are told.
    """
    comments = [f"# {line}".rstrip() for line in comment.splitlines()]
    try:
        body = _model(with_separate_biases(graph))
    except Refusal as refusal:
        raise InputError((Diagnostic(refusal.code, refusal.message, refusal.help),)) from None
    name = _free(identifier(graph.name), set())
    return "\n".join([*comments, f"model {name} {{", *(f"{INDENT}{line}" for line in body), "}", ""])


def _model(graph: Graph) -> list[str]:
    symbols = open_numbers(graph)
    taken = {symbol.name for symbol in symbols}
    names = {graph.input.name: _free(graph.input.name, taken)}
    counts = _counted(graph)
    params = [f"param {s.name}: {'int' if s in counts else 'real'}" for s in symbols if s != graph.input.norm]
    body = _Body(graph, taken, names)
    loss = [] if graph.loss is None else [f"loss {loss_call(graph.loss)}"]
    return [*params, _input(graph.input, names[graph.input.name]), *body.lines(), *loss]


def _input(source: Input, name: str) -> str:
    if not source.shape:
        raise Refusal("LIP017", "an input without axes cannot be written in .lip", "reshape it to [1]")
    kind = f"{'tokens' if source.tokens else 'tensor'}[{', '.join(map(str, source.shape))}]"
    norm = "" if source.norm is None else f", norm <= {text(source.norm)}"
    return f"input {name}: {kind}{norm}{', trusted' if source.trusted else ''}"


def _free(name: str, taken: Iterable[str]) -> str:
    """Return a name that is no word of the grammar, and not taken."""
    taken = set(taken)
    while name in _KEYWORDS or name in taken:
        name += "_"
    return name


# Symbols


def _counted(graph: Graph) -> set[Symbol]:
    """Return the symbols in the counts of repetitions."""
    loops = [node.attributes for node in graph.nodes if is_loop(node)]
    inner = (_counted(loop.body) for loop in loops)
    return {symbol for loop in loops for symbol in symbols_of(loop.count.scalar)}.union(*inner)


# Bodies


class _Body:
    """Writes the statements of one graph: of a model, or of a repetition.

    taken: names that its values cannot have. aliases: what values are called where they are read by name. prefix:
    of labels. shared: parameters that all copies of a repetition have in common.
    """

    def __init__(
        self, graph: Graph, taken: set[str], aliases: dict[str, str], prefix: str = "", shared: Iterable[str] = ()
    ) -> None:
        self._graph = graph
        self._taken = taken
        self._aliases = aliases
        self._own = {node.name for node in graph.nodes}
        self._names = Names()
        self._names.fresh(graph.input.name)
        self._labels = {name: prefix + label for name, label in _labels(graph, frozenset(shared))}
        self._prefix = prefix
        structured = not any(_looks_merged(node) for node in graph.nodes if node.parameters)
        self._items = Outline(graph, structured=structured).items()
        self._read = _readers(self._items, graph.input.name)

    def lines(self) -> list[str]:
        """Return all statements, a line a line."""
        return self._written(self._items, self._graph.input.name, frozen=False)

    def _written(self, items: Sequence[Item], current: str, *, frozen: bool) -> list[str]:
        """Return the lines of statements; where something is trained, what is not stands in blocks."""
        lines: list[str] = []
        while items:
            run = 0 if frozen else self._frozen_run(items)
            if run:
                body = self._written(items[:run], current, frozen=True)
                lines += self._block(items[run - 1].output, _braced("frozen", [body], ""))
            else:
                lines += self._statement(items[0], current, frozen=frozen)
            current = items[max(run, 1) - 1].output
            items = items[max(run, 1) :]
        return lines

    # One statement

    def _statement(self, item: Item, current: str, *, frozen: bool) -> list[str]:
        if isinstance(item, Fork):
            bodies = [self._written(body, current, frozen=frozen) for body in item.bodies]
            self._names.fresh(item.spelling)
            return self._block(item.output, _braced(item.head, bodies, item.tail))
        if is_loop(item.node):
            return self._repeat(item.node, current)
        return [self._layer(item.node, current, frozen=frozen)]

    def _layer(self, node: Node, current: str, *, frozen: bool) -> str:
        operands = [] if _reads_above(node, current) else [self._alias(value) for value in node.inputs]
        label = self._labels.get(node.name)
        written = call(node, operands, self._graph.parameters, label, _clip(node, self._graph), frozen=frozen)
        return f"{self._target(node, spelling_of(node).name)}{written}"

    def _target(self, node: Node, default: str) -> str:
        """Return `name = ` for a value that is read by name, or whose weights would be called otherwise."""
        made = self._names.peek(identifier(default))
        keeps_default = made == node.name or (made not in self._own and not _names_weights(node))
        if node.name not in self._read and keeps_default:
            self._names.fresh(identifier(default))
            return ""
        alias = self._define(node.name)
        self._names.fresh(identifier(alias))
        return f"{alias} = "

    def _repeat(self, node: Node, current: str) -> list[str]:
        if not _reads_above(node, current):
            raise unspeakable(node, "a repetition acts on the value above it")
        loop: Loop = node.attributes
        taken = self._taken | set(self._aliases.values())
        body = _Body(loop.body, taken, {}, f"{self._prefix}{loop.name}.", loop.shared)
        self._names.fresh(node.name)
        return self._block(node.name, _braced(f"repeat {text(loop.count.scalar)}", [body.lines()], ""))

    # Names

    def _block(self, value: str, lines: list[str]) -> list[str]:
        """Name the result of a statement with bodies, if it is read by name."""
        if value not in self._read:
            return lines
        return [f"{self._aliases.get(value) or self._define(value)} = {lines[0]}", *lines[1:]]

    def _define(self, value: str) -> str:
        """Choose what a value is called from here on."""
        self._aliases[value] = _free(value, {*self._taken, *self._aliases.values()})
        return self._aliases[value]

    def _alias(self, value: str) -> str:
        if value not in self._aliases:
            message = f"`{value}`, the entry of a repetition, cannot be read by name in .lip"
            raise Refusal("LIP017", message, "write the model as ONNX instead")
        return self._aliases[value]

    # Frozen parts

    def _frozen_run(self, items: Sequence[Item]) -> int:
        """Return how many of the first statements can stand in one block that is not trained, 0 for none.

        Names that are defined in a block end with it: only the value of its last statement may be read behind it.
        """
        inside, result = set[str](), 0
        for count, item in enumerate(items, start=1):
            trained = self._trained(item)
            if any(trained) or (count == 1 and not trained):
                break
            inside |= {node.name for node in _nodes(item)}
            if trained and all(self._read.get(name, inside) <= inside for name in inside - {item.output}):
                result = count
        return result

    def _trained(self, item: Item) -> list[bool]:
        """Return for each parameter of a statement whether it is trained."""
        used = (name for node in _nodes(item) for name in node.parameters.values())
        return [self._graph.parameters[name].trainable for name in used]


def _braced(head: str, bodies: Sequence[Sequence[str]], tail: str) -> list[str]:
    """Write bodies in braces, on one line if they fit there."""
    inner = " ".join(f"{{ {'; '.join(body)} }}" if body else "{ }" for body in bodies)
    short = f"{head} {inner}{tail}"
    if len(short) <= WIDTH and not any("{" in line or line == "}" for body in bodies for line in body):
        return [short]
    lines = [f"{head} {{"]
    for place, body in enumerate(bodies):
        lines += ["} {"] if place else []
        lines += [f"{INDENT}{line}" for line in body]
    return [*lines, f"}}{tail}"]


def _clip(node: Node, graph: Graph) -> ClipGroup | None:
    """Return the group that clips a layer, None without one; raises `Refusal` for one of several layers."""
    own = set(node.parameters.values())
    found = [group for group in graph.clips if own & set(group.parameters)]
    if found and set(found[0].parameters) != own:
        raise unspeakable(node, "it is clipped together with other layers", "choose --bounds where it is read")
    return found[0] if found else None


def _nodes(item: Item) -> Iterator[Node]:
    """Yield the nodes of a statement."""
    if isinstance(item, Step):
        yield item.node
        return
    for body in item.bodies:
        for inner in body:
            yield from _nodes(inner)
    yield item.merge


def _reads_above(node: Node, current: str) -> bool:
    """Whether a layer may leave its operand out."""
    most = node.op.operands[1]
    return node.inputs == (current,) and (most == 1 or node.op.name in ("add", "attention"))


def _readers(items: Sequence[Item], current: str) -> dict[str, set[str]]:
    """Return the values that statements have to name, with the nodes that read them so."""
    found: dict[str, set[str]] = {}
    for item in items:
        if isinstance(item, Fork):
            for body in item.bodies:
                for value, names in _readers(body, current).items():
                    found.setdefault(value, set()).update(names)
        elif not _reads_above(item.node, current):
            for value in item.node.inputs:
                found.setdefault(value, set()).add(item.node.name)
        current = item.output
    return found


def _names_weights(node: Node) -> bool:
    """Whether parameters are called like the node."""
    return any(name.rpartition(".")[0] == node.name for name in node.parameters.values())


def _looks_merged(node: Node) -> bool:
    """Whether a node could have the name that a residual or a branch gets by itself."""
    stem = node.name.rstrip("0123456789").removesuffix("_")
    return stem in (*MERGES, "mean", "convex")


def _labels(graph: Graph, shared: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield nodes with the label of the weights that they share; raises `Refusal` for weights shared in part."""
    users: dict[str, list[str]] = {}
    for node in graph.nodes:
        for name in node.parameters.values():
            users.setdefault(name, []).append(node.name)
    for node in graph.nodes:
        groups = {(*users[name], name in shared) for name in node.parameters.values()}
        if len(groups) > 1:
            raise unspeakable(node, "it shares one of its parameters, and not the others")
        group = next(iter(groups), ())
        if len(group) > 2 or True in group:
            yield node.name, str(group[0])
