"""Emitted files are read back as what their certificates say, and no other file is.

That each spelling computes what the op says is the matter of `tests/attacks`, which runs emitted modules against
oracles. Here it is that no file with another spelling passes.
"""

from __future__ import annotations

import ast
import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lipcompile_torch.emit import emit
from lipcompile_torch.runtime.module import LipschitzModule
from lipcompile_verify import emitted, files, spelling

import lipcompile
from lipcompile import pipeline
from lipcompile.certificates import certificate
from lipcompile.derivation import Derivation
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.graph import Graph
from tests.attacks.graphs import random_graph
from tests.certified import SOURCE, losses, uses

EXAMPLES = Path(__file__).parents[2] / "examples"
CLOSED = sorted(path.name for path in EXAMPLES.glob("*.[lo][in][px]*") if path.name != "deep.lip")

CONV = """
  input image: tensor[2, 6, 6], norm <= 1.5
  first = conv2d(4, kernel=3, stride=2, padding=1, constraint=spectral(1/3), bias=0.7)
  leaky_relu(0.3)
  clip_norm(2)
  second = conv2d(4, kernel=2, padding=1, padding_mode=reflect, constraint=frobenius(1))
  max_pool(2, stride=1)
  flatten
  logits = dense(4, constraint=orthogonal)
  loss cross_entropy(temperature=0.7, label_smoothing=0.1)
"""
MERGED = """
  input x: tensor[6], norm <= 1
  a = dense(6, bias=0.5)
  b = tanh
  c = dense(6)
  m = add(a, c, weights=(0.3, -0.5))
  clip_gradient(0.1)
  s = slice(0, 1, 5)
  layer_norm(floor=0.1)
  dense(3)
  loss multiclass_hkr(alpha=2)
"""
FROZEN = """
  input x: tensor[6], norm <= 1
  frozen { early = dense(5)
    t = tanh }
  late = dense(3)
  loss cross_entropy
"""


@dataclass(frozen=True)
class Emitted:
    """An emitted file and its certificate."""

    text: str
    document: Mapping[str, Any]
    known: dict[str, emitted.Derived] = field(default_factory=dict)

    def derive(self, graph: Mapping[str, Any]) -> emitted.Derived:
        key = json.dumps(graph, sort_keys=True)
        if key not in self.known:
            self.known[key] = files.derived(self.document, graph)
        return self.known[key]

    def refusal(self, text: str | None = None) -> str:
        """Why a text is refused; empty if it is not."""
        try:
            emitted.check((text or self.text).encode(), self.document, self.derive)
        except emitted.ForeignError as error:
            return str(error)
        return ""

    def changed(self, old: str, new: str, count: int = 1) -> str:
        """The file with a passage in the place of another."""
        assert old in self.text, old
        return self.text.replace(old, new, count)


def of(derivation: Derivation, **options: Any) -> Emitted:
    assert derivation.ok, derivation.diagnostics
    return Emitted(emit(derivation, **options), json.loads(json.dumps(certificate(derivation))))


def of_text(folder: Path, body: str) -> Emitted:
    path = folder / "net.lip"
    path.write_text(f"model net {{ {body} }}")
    return of(lipcompile.check(str(path)))


def of_graph(graph: Graph) -> Emitted | None:
    derivation = pipeline.derive(Loaded(SOURCE, graph, ()), ModelOptions())
    return of(derivation) if derivation.ok else None


# What is emitted is read back


@pytest.mark.parametrize("name", CLOSED)
def test_examples(name: str) -> None:
    assert of(lipcompile.check(str(EXAMPLES / name))).refusal() == ""


@pytest.mark.parametrize("seed", range(2))
def test_every_op_and_loss(seed: int) -> None:
    found = {}
    for graph in (*uses(2, seed), *losses(2, seed)):
        one = of_graph(graph)
        if one is not None:
            found |= {node["op"]: one.refusal() for node in one.document["graph"]["nodes"]}
            assert one.refusal() == "", one.document["graph"]["nodes"]
    assert found.keys() >= {*spelling.NODES, *spelling.LAYERS}


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    graph = random_graph(seed)
    plain = all("." in name for name in graph.parameters)  # else no file can be emitted
    pools = any(node.op.name == "scaled_avg_pool" for node in graph.nodes)  # of attributes that no front end gives
    one = of_graph(graph) if plain and not pools else None
    assert one is None or one.refusal() == ""


def test_noise_strategies_and_drawn_weights_are_known_extras(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    path.write_text(f"model net {{ {MERGED.replace('c = dense(6)', 'c = dense(6, start=zero)')} }}")
    strategy = {"kind": "banded", "coefficients": [1.0, 0.5], "steps": 4}
    one = of(lipcompile.check(str(path)), noise_strategy=strategy)
    assert "drawn=" in one.text
    assert "noise_strategy" in one.text
    assert one.refusal() == ""


def test_bounds_that_follow_the_weights_are_refused(tmp_path: Path) -> None:
    """The noise would rest on a program that no certificate covers."""
    path = tmp_path / "net.lip"
    path.write_text(f"model net {{ {CONV} }}")
    assert "gradient_bounds" in of(lipcompile.check(str(path)), follow_weights=True).refusal()


def test_reserved_names_are_those_of_the_runtime() -> None:
    """A layer of the name of an attribute would be shadowed by it: `self.clip_input(x)` would be another call."""
    assert {name for name in dir(LipschitzModule()) if not name.startswith("_")} <= emitted.RESERVED


# What is changed is refused


Change = Callable[[], None]


def changes(member: ast.stmt) -> Iterator[tuple[str, Change]]:
    """Every small change of a member of the class, of which one is made."""
    ordered = isinstance(member, ast.FunctionDef) and member.name != "__init__"
    for node in ast.walk(member):
        if isinstance(node, ast.Constant):
            for value in _others(node.value):
                yield f"{node.value!r} becomes {value!r}", lambda n=node, v=value: setattr(n, "value", v)
        elif isinstance(node, ast.Name | ast.Attribute):
            field = "id" if isinstance(node, ast.Name) else "attr"
            text = getattr(node, field)
            yield f"{text} is renamed", lambda n=node, f=field, t=text: setattr(n, f, f"{t}_")
        elif isinstance(node, ast.BinOp):
            yield "an operation becomes another", lambda n=node: setattr(n, "op", ast.Sub())
            if ast.dump(node.left) != ast.dump(node.right):
                yield "operands are exchanged", lambda n=node: _exchange(n)
        elif isinstance(node, ast.Call):
            for index in range(len(node.args)):
                yield "an argument is left out", lambda n=node, i=index: n.args.pop(i)
            for index in range(len(node.args) - 1):
                yield "arguments are exchanged", lambda n=node, i=index: n.args.insert(i, n.args.pop(i + 1))
            for index in range(len(node.keywords)):
                yield "a keyword is left out", lambda n=node, i=index: n.keywords.pop(i)
            yield (
                "a keyword is added",
                lambda n=node: n.keywords.append(ast.keyword("inplace", ast.Constant(True))),
            )
        elif isinstance(node, ast.FunctionDef):
            for index in range(len(node.body)):
                yield "a statement is left out", lambda n=node, i=index: n.body.pop(i)
                yield "a statement stands twice", lambda n=node, i=index: n.body.insert(i, n.body[i])
            for index in range(len(node.body) - 1 if ordered else 0):
                yield "statements change places", lambda n=node, i=index: n.body.insert(i, n.body.pop(i + 1))
            yield "it is decorated", lambda n=node: n.decorator_list.append(ast.Name("staticmethod"))
            yield "a parameter is added", lambda n=node: n.args.args.append(ast.arg("more"))


def _others(value: object) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1, -value - 1, float(value), bool(value))
    if isinstance(value, float):
        near = (math.nextafter(value, way) for way in (-math.inf, math.inf))
        return (*near, value / 2, value * 2, -value - 1, int(value))
    return (f"{value}x",) if isinstance(value, str) else (0,)


def _exchange(node: ast.BinOp) -> None:
    node.left, node.right = node.right, node.left


# A bound may be larger than it must be, and a constant that others are divided by a rounding larger.
MAY_BE_LARGER = {"bounds": math.inf, "unclipped_bounds": math.inf, "lipschitz": math.inf, "loss_lipschitz": 1 + 1e-13}


@pytest.mark.parametrize("body", [CONV, MERGED, FROZEN], ids=["conv", "merged", "frozen"])
def test_small_changes_are_refused(body: str, tmp_path: Path) -> None:
    """Numbers, names, operands, arguments, statements: one change at a time of all that stands in the class."""
    one = of_text(tmp_path, body)
    tree = ast.parse(one.text)
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    members = [
        member for member in found.body if not isinstance(member, ast.Expr) and "slope" not in called(member)
    ]
    tried = 0
    for member in members:
        for node in (member, *(member.body if isinstance(member, ast.FunctionDef) else ())):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                del node.body[0]
        place, before = found.body.index(member), ast.dump(member)
        for index in range(sum(1 for _ in changes(member))):
            changed = found.body[place] = copy.deepcopy(member)
            what, change = list(changes(changed))[index]
            change()
            if ast.dump(changed) != before:
                tried += 1
                accepted = one.refusal(ast.unparse(tree)) == ""
                assert accepted == raised(called(member), member, changed), (what, ast.unparse(changed))
        found.body[place] = member
    assert one.refusal(ast.unparse(tree)) == ""
    assert tried > 300


def called(member: ast.stmt) -> str:
    return member.name if isinstance(member, ast.FunctionDef) else ast.unparse(member).partition(" ")[0]


def raised(name: str, member: ast.stmt, changed: ast.stmt) -> bool:
    """Whether the change makes a bound larger, and is no other."""
    pairs = [
        (a.value, b.value)
        for a, b in zip(ast.walk(member), ast.walk(changed), strict=False)
        if isinstance(a, ast.Constant) and isinstance(b, ast.Constant) and a.value != b.value
    ]
    return len(pairs) == 1 and all(
        type(b) is float and a < b <= a * MAY_BE_LARGER.get(name, 0) for a, b in pairs if isinstance(a, float)
    )
