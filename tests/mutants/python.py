"""Mutants of Python: each has one term less that rounds outward, or one such term turned inward."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

# Names of what rounds outward or stands for rounding: units, margins, bounds of errors.
_NAMES = re.compile(
    r"DOUBLE|SINGLE|BRAIN|_?UNIT|_(MARGIN|EXP|CONSTANT|HEADROOM|SAME|PHASE_ERROR|(FREQUENCY_)?SLACKS?|TF32_SLACK|ROUNDING)|ROUNDINGS"
    r"|_?gamma|gamma_single|unit|eps|tiny|smallest_normal|excess|lost|summed|step|distance|_?vanished|sqrt"
    r"|\w*(error|slack|rounding)|rounded"
)
_FACTORS = re.compile(r"_?(UP(_MANY)?|up|OUTWARD)")
_SWAPPED = {
    "max": "min",
    "maximum": "minimum",
    "amax": "amin",
    "clamp_min": "clamp_max",
    "ceil": "floor",
    "round_ceiling": "round_floor",
    "_UP": "_DOWN",
}
_SWAPPED |= {new: old for old, new in _SWAPPED.items()}
_EDGES = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Args:
        place: name of the function or class that it is in, and which of its kind there it is, from the second on.
        old, new: what stands there, and what is put in its place.
        start, end: where that is, in bytes.
    """

    place: str
    kind: str
    old: str
    new: str
    start: int
    end: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it when other lines of the file change."""
        return self.place, self.old, self.new

    def applied(self, source: str) -> str:
        """Return the file with the change."""
        text = source.encode()
        return (text[: self.start] + self.new.encode() + text[self.end :]).decode()


def mutants(source: str, edges: bool = True) -> list[Mutant]:
    """Return the mutants of a file in the order of its lines; comparisons at their edges only if asked for."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found: list[Mutant] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for scope, kind, node, new in _changes(ast.parse(source), "", edges):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        old, text = source.encode()[start:end].decode(), ast.unparse(new)
        key = scope, " ".join(old.split()), text
        seen[key] += 1
        place = scope + (f" ({seen[key]})" if seen[key] > 1 else "")
        found.append(Mutant(place, kind, key[1], f"({text})" if isinstance(new, ast.BinOp) else text, start, end))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.new))


def _changes(tree: ast.AST, scope: str, edges: bool) -> Iterator[tuple[str, str, ast.expr, ast.expr]]:
    for node in ast.iter_child_nodes(tree):
        inner = scope
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = f"{scope}.{node.name}".lstrip(".")
        if not scope and isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            inner = ast.unparse(target)
            if node.value is not None and all(map(_named, ast.walk(target))):
                yield from ((inner, "constant", part, ast.Constant(0.0)) for part in _numbers(node.value))
        if isinstance(node, ast.BinOp):
            yield from ((inner, "term", node, new) for new in _shorter(node))
        if isinstance(node, ast.Call):
            yield from ((inner, "direction", node, new) for new in _turned(node))
        if edges and isinstance(node, ast.Compare) and type(node.ops[0]) in _EDGES and _is_of_floats(node):
            yield (
                inner,
                "edge",
                node,
                ast.Compare(node.left, [_EDGES[type(node.ops[0])](), *node.ops[1:]], node.comparators),
            )
        yield from _changes(node, inner, edges)


def _named(node: ast.AST) -> bool:
    """Whether this is no name, or one of what rounds outward."""
    name = _name(node)
    return name is None or bool(_NAMES.fullmatch(name))


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call | ast.Subscript):
        return _name(node.func if isinstance(node, ast.Call) else node.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _numbers(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the numbers that a constant is, or consists of; 1 + x is a sum, whose terms go one by one."""
    if isinstance(value, ast.Tuple):
        yield from (part for element in value.elts for part in _numbers(element))
    elif isinstance(value, ast.Dict):
        yield from (part for element in value.values for part in _numbers(element))
    elif _is_small(value):
        yield value


def _is_small(node: ast.expr) -> bool:
    """Whether this is a number near 0 that rounding is paid for with."""
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            return isinstance(node.right, ast.UnaryOp) and isinstance(node.right.op, ast.USub)
        if isinstance(node.op, ast.Mult):
            return _is_small(node.left) or _is_small(node.right)
        left = _is_small(node.left)
        return left and _is_small(node.right) if isinstance(node.op, ast.Add | ast.Sub) else left
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and 0 < node.value <= 1e-3
    if isinstance(node, ast.Call) and _name(node) == "Fraction":
        return len(node.args) == 2
    return _name(node) is not None and _named(node) and not _is_factor(node)


def _is_factor(node: ast.expr) -> bool:
    """Whether this is a number near 1 that rounds outward, or one as another type."""
    if isinstance(node, ast.Call):
        return len(node.args) == 1 and _is_factor(node.args[0])
    return isinstance(node, ast.Name | ast.Attribute) and bool(_FACTORS.fullmatch(_name(node) or ""))


def _shorter(node: ast.BinOp) -> Iterator[ast.expr]:
    """Yield a sum without a term that rounds outward, 1 - x for 1 + x, or a product without such a factor."""
    if isinstance(node.op, ast.Add | ast.Sub):
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        if _is_small(node.right):
            yield node.left
            yield ast.BinOp(node.left, other, node.right)
        if _is_small(node.left):
            yield node.right if isinstance(node.op, ast.Add) else ast.UnaryOp(ast.USub(), node.right)
    elif isinstance(node.op, ast.Mult | ast.Div):
        if _is_factor(node.right):
            yield node.left
        if _is_factor(node.left) and isinstance(node.op, ast.Mult):
            yield node.right


def _turned(node: ast.Call) -> Iterator[ast.expr]:
    """Yield what is not rounded outward, or what takes the other extreme."""
    name = _name(node.func)
    if name == "nextafter":
        yield node.args[0]
    elif name in _SWAPPED and isinstance(node.func, ast.Attribute):
        yield ast.Call(ast.Attribute(node.func.value, _SWAPPED[name]), node.args, node.keywords)
    elif name in _SWAPPED:
        yield ast.Call(ast.Name(_SWAPPED[name]), node.args, node.keywords)
    for i, argument in enumerate(node.args):
        if (_name(argument) or "") in ("_UP", "_DOWN", "round_floor", "round_ceiling"):
            swapped = ast.Name(_SWAPPED[_name(argument) or ""])
            yield ast.Call(node.func, [*node.args[:i], swapped, *node.args[i + 1 :]], node.keywords)


def _is_of_floats(node: ast.Compare) -> bool:
    """Whether this may compare bounds: no counts, sizes or lengths."""
    parts = [node.left, *node.comparators]
    return not any(
        (isinstance(part, ast.Constant) and isinstance(part.value, int))
        or re.search(r"shape|\blen\(|SIZE|PATIENCE|set\(|^\{|^_leaves|symbols", ast.unparse(part))
        for part in parts
    )
