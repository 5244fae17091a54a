"""Emitted files are read back as what their certificates say, and no other file is.

That each spelling computes what the op says is the matter of `tests/attacks`, which runs emitted modules against
oracles. Here it is that no file with another spelling passes.
"""

from __future__ import annotations

import ast
import copy
import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lipcompile_torch.train.module import LipschitzModule
from lipcompile_verify import emitted, files, spelling
from lipcompile_verify.document import ForeignError

import lipcompile
from lipcompile import pipeline
from lipcompile.certificates import certificate
from lipcompile.core.derivation import Derivation
from lipcompile.core.graph import Graph
from lipcompile.emitters.torch.emit import emit
from lipcompile.frontends.options import Loaded, ModelOptions
from lipcompile.ops.pool.rules import AveragePool
from tests.attacks.graphs import random_graph
from tests.certified import SOURCE, losses, uses
from tests.nights import by_day

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
TIED = """
  input x: tensor[3], norm <= 1
  early = dense(3, share="w")
  tanh
  other = dense(3)
  tied = dense_transpose(3, share="w")
  loss cross_entropy
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
        except ForeignError as error:
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
    if body not in KNOWN:
        path = folder / "net.lip"
        path.write_text(f"model net {{ {body} }}")
        KNOWN[body] = of(lipcompile.check(str(path)))
    return KNOWN[body]


KNOWN: dict[str, Emitted] = {}


def of_graph(graph: Graph) -> Emitted | None:
    derivation = pipeline.derive(Loaded(SOURCE, graph, ()), ModelOptions())
    return of(derivation) if derivation.ok else None


# What is emitted is read back


@pytest.mark.parametrize("name", CLOSED)
def test_examples(name: str) -> None:
    assert of(lipcompile.check(str(EXAMPLES / name))).refusal() == ""


@pytest.mark.slow
def test_every_op_and_loss() -> None:
    found = set()
    for graph in (*uses(1), *losses(1)):
        one = of_graph(graph)
        if one is not None:
            found |= {node["op"] for node in one.document["graph"]["nodes"]}
            assert one.refusal() == "", one.document["graph"]["nodes"]
    assert found >= {*spelling.NODES, *spelling.LAYERS}


# Pools of 7 by 6, and what is written of the padding that divisors count: nothing if that is all of it.
POOLS = {
    "2": "",
    "3, stride=2, padding=1": "",
    "3, stride=2, padding=((0, 1), (1, 0))": "",
    "3, stride=2, padding=1, count_include_pad=false": "((0, 0), (0, 0))",
    "3, stride=2, padding=((0, 1), (0, 0)), count_include_pad=false": "((0, 0), (0, 0))",
    "3, stride=2, padding=((1, 0), (0, 0)), count_include_pad=false": "((0, 0), (0, 0))",
    "4, stride=3, ceil_mode=true": "((0, 0), (0, 0))",
    "4, stride=2, padding=1, ceil_mode=true": "((1, 1), (1, 1))",
    "1, stride=3, padding=0, ceil_mode=true": "",
}


@pytest.mark.parametrize("pool", POOLS)
def test_divisors_of_averages(pool: str, tmp_path: Path) -> None:
    one = of_text(
        tmp_path, f"input x: tensor[2, 7, 6], norm <= 1.0; avg_pool({pool}); flatten; dense(3); loss cross_entropy"
    )
    assert one.refusal() == ""
    text = "".join(one.text.split())
    assert text.count("counted=") == text.count(f",counted={POOLS[pool]}".replace(" ", "")) == bool(POOLS[pool])


@pytest.mark.parametrize("dropout", ["dropout({})", "grouped_dropout({}, axes=1)", "attention(2, dropout={})"])
def test_what_dropout_keeps_grows_by_no_more_than_the_bound_says(dropout: str, tmp_path: Path) -> None:
    # 1 - p is 1.4·2⁻⁵³. The nearest double above p leaves 2⁻⁵³, and so a factor that is 1.4 times 1/(1 - p).
    exact = 1 - Fraction(14, 10) / 2**53
    line = dropout.format(f"{exact.numerator}/{exact.denominator}")
    one = of_text(tmp_path, f"input x: tensor[4, 4], norm <= 1.0; {line}; flatten; dense(3); loss cross_entropy")
    assert one.refusal() == ""
    (written,) = {float(found) for found in re.findall(r"0\.99999\d+", one.text)}
    assert Fraction(written) <= exact
    rounded = repr(written), repr(math.nextafter(written, 1))
    assert one.refusal(one.text.replace(*rounded)) != ""


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int) -> None:
    graph = random_graph(seed)
    plain = all("." in name for name in graph.parameters)  # else no file can be emitted
    pools = {node.op.name for node in graph.nodes if isinstance(node.attributes, AveragePool)}
    one = (
        of_graph(graph) if plain and pools <= {"avg_pool"} else None
    )  # others have attributes that are not theirs
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
    refusal = of(lipcompile.check(str(path)), follow_weights=True).refusal()
    assert "gradient_bounds computes bounds from the current weights" in refusal


def test_reserved_names_are_those_of_the_runtime() -> None:
    """A layer of the name of an attribute would be shadowed by it: `self.clip_input(x)` would be another call."""
    assert {name for name in dir(cast(Any, LipschitzModule)()) if not name.startswith("_")} <= emitted.RESERVED


def test_two_parameters_are_not_one_weight_of_the_file(tmp_path: Path) -> None:
    """`early` and `early.weight` would both be the weight of `self.early`, with half its bound each."""
    body = "input x: tensor[3], norm <= 1\n early = dense(3)\n tanh\n late = dense(3)\n loss cross_entropy"
    path = tmp_path / "net.lip"
    path.write_text(f"model net {{ {body} }}")
    derivation = lipcompile.check(str(path))
    document = json.loads(json.dumps(certificate(derivation)).replace("late.weight", "early"))
    text = emit(derivation).replace("self.late(", "self.early(")
    text = "".join(line for line in text.splitlines(keepends=True) if "self.late =" not in line)
    one = Emitted(text.replace("late.weight", "early"), document)
    with pytest.raises(ForeignError, match="the layer `early` cannot hold"):
        emitted._File(document["graph"], one.derive(document["graph"]), emitted._parsed(text))._spell()


def test_a_layer_that_takes_the_matrix_of_another_takes_that_one(tmp_path: Path) -> None:
    one = of_text(tmp_path, TIED)
    assert one.refusal() == ""
    assert one.refusal(one.changed("self.early.weight)", "self.other.weight)"))
    assert one.refusal(one.changed("self.early.weight)", "2 * self.early.weight)"))
    assert one.refusal(one.changed("layers.TiedDense(transposed=True)", "layers.TiedDense()"))
    own = one.changed("layers.TiedDense(transposed=True)", "layers.DenseTranspose(3, 3, constraint=Spectral(1.0))")
    assert one.refusal(own.replace(", self.early.weight)", ")"))


# What is changed is refused


def changes(member: ast.stmt) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every small change of a member of the class, of which one is made."""
    ordered = isinstance(member, ast.FunctionDef) and member.name != "__init__"
    for node in ast.walk(member):
        if isinstance(node, ast.Constant):
            for value in _others(node.value, claimed=called(member) in MAY_BE_LARGER):
                yield f"{node.value!r} becomes {value!r}", partial(setattr, node, "value", value)
        elif isinstance(node, ast.Name | ast.Attribute):
            field = "id" if isinstance(node, ast.Name) else "attr"
            text = getattr(node, field)
            yield f"{text} is renamed", partial(setattr, node, field, f"{text}_")
        elif isinstance(node, ast.BinOp):
            yield "an operation becomes another", partial(setattr, node, "op", ast.Sub())
            yield "operands are exchanged", partial(_exchange, node)
        elif isinstance(node, ast.Call):
            for arguments in (node.args, node.keywords):
                for index in range(len(arguments)):
                    yield "an argument is left out", partial(arguments.pop, index)
            for index in range(len(node.args) - 1):
                yield "arguments are exchanged", partial(_move_up, node.args, index)
            added = ast.keyword("inplace", ast.Constant(True))
            yield "a keyword is added", partial(node.keywords.append, added)
        elif isinstance(node, ast.FunctionDef):
            for index in range(len(node.body)):
                yield "a statement is left out", partial(node.body.pop, index)
                yield "a statement stands twice", partial(node.body.insert, index, node.body[index])
            for index in range(len(node.body) - 1 if ordered else 0):
                yield "statements change places", partial(_move_up, node.body, index)
            yield "it is decorated", partial(node.decorator_list.append, ast.Name("staticmethod"))
            yield "a parameter is added", partial(node.args.args.append, ast.arg("more"))


def _move_up(items: list[Any], index: int) -> None:
    items.insert(index, items.pop(index + 1))


def _others(value: object, *, claimed: bool) -> tuple[Any, ...]:
    """Other values; of what is claimed one that is below it by more than claims exceed suprema, 2^-40."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1, -value - 1, float(value), bool(value))
    if isinstance(value, float):
        less = value * (1 - 1e-11) if claimed else math.nextafter(value, -math.inf)
        return (less, math.nextafter(value, math.inf), value / 2, value * 2, -value - 1, int(value))
    return (f"{value}x",) if isinstance(value, str) else (0,)


def _exchange(node: ast.BinOp) -> None:
    node.left, node.right = node.right, node.left


# A bound may be larger than it must be, and a constant that others are divided by a rounding larger.
MAY_BE_LARGER = {
    "bounds": math.inf,
    "unclipped_bounds": math.inf,
    "lipschitz": math.inf,
    "loss_lipschitz": 1 + 1e-13,
}


@pytest.mark.slow
@pytest.mark.parametrize("step", by_day([3], [3, 1]))
@pytest.mark.parametrize("body", [CONV, MERGED, FROZEN], ids=["conv", "merged", "frozen"])
def test_small_changes_are_refused(body: str, step: int, tmp_path: Path) -> None:
    """Numbers, names, operands, arguments, statements: one change at a time of all that stands in the class, or of
    each third of it.
    """
    one = of_text(tmp_path, body)
    tree = ast.parse(one.text)
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    apart = ("slope", "features_norm")
    members = [member for member in found.body if not isinstance(member, ast.Expr) and called(member) not in apart]
    tried = 0
    for member in members:
        for node in (member, *(member.body if isinstance(member, ast.FunctionDef) else ())):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                del node.body[0]
        place, before = found.body.index(member), ast.dump(member)
        for index in range(sum(1 for _ in changes(member)))[::step]:
            changed = found.body[place] = copy.deepcopy(member)
            what, change = next(islice(changes(changed), index, None))
            change()
            if ast.dump(changed) != before:
                tried += 1
                accepted = one.refusal(ast.unparse(tree)) == ""
                assert accepted == raised(called(member), member, changed), (what, ast.unparse(changed))
        found.body[place] = member
    assert one.refusal(ast.unparse(tree)) == ""
    assert tried > 200 // step


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
        type(b) is float and isinstance(a, float) and a < b <= a * MAY_BE_LARGER.get(name, 0) for a, b in pairs
    )


# What stands elsewhere, and what hides

ELSEWHERE = {
    "another import": ("import json\n", "import json\nimport os\n"),
    "an import under another name": ("import Tensor", "import Tensor as torch"),
    "a function of another module": ("from torch.nn import functional as F", "from os import path as F"),
    "code before the class": ("\n\nclass Net", "\n\nlayers.Dense = None\n\nclass Net"),
    "another base": ("class Net(LipschitzModule):", "class Net(LipschitzModule, dict):"),
    "a metaclass": ("class Net(LipschitzModule):", "class Net(LipschitzModule, metaclass=type):"),
    "a decorated class": ("class Net(", "@print\nclass Net("),
    "a second class": ("\n_CERTIFICATE =", "\nclass Other(Net):\n    pass\n\n_CERTIFICATE ="),
    "a hidden setattr": ("\nModel = Net", "\nsetattr(Net, 'input_norm', 9.0)\nModel = Net"),
    "an attribute set later": ("\nModel = Net", "\nNet.input_norm = 9.0\nModel = Net"),
    "another model": ("\nModel = Net", "\nModel = LipschitzModule"),
    "a third constant": ("\nModel = Net", "\nModel = Net\n__all__ = []"),
    "a method that overrides": ("    def forward(", "    def project_(self) -> None: ...\n\n    def forward("),
    "a private method": ("    def forward(", "    def _apply(self, fn): ...\n\n    def forward("),
    "a class in the class": ("    def forward(", "    class Gate: ...\n\n    def forward("),
    "an asynchronous method": ("    def forward(", "    async def forward("),
    "a second forward": ("    def per_example_loss(", "    forward = print\n\n    def per_example_loss("),
    "an attribute of several names": ("input_norm = 1.5", "input_norm = other = 1.5"),
    "an annotated attribute": ("input_norm = 1.5", "input_norm: float = 1.5"),
    "a walrus": ("self.release(logits)", "self.release(logits := first)"),
    "a conditional": ("self.clip_input(image)", "self.clip_input(image) if True else image"),
    "a trusted input": ("input_trusted = False", "input_trusted = True"),
    "a docstring that is computed": ('"""The network net."""', 'f"""{print()}"""'),
    "a certificate that is computed": ('_CERTIFICATE = """', '_CERTIFICATE = "" + """'),
    "another certificate": ('"trusted": false', '"trusted": true'),
    "code after a line": ("self.project_()\n", "self.project_(); self.input_norm = 9.0\n"),
    "a slope that does more": ("l_second = num.sqrt(4)", "l_second = num.sqrt(self.project_())"),
    "a slope that calls": ("l_second = num.sqrt(4)", "l_second = print(4)"),
    "a slope that reaches further": ("l_second = num.sqrt(4)", "l_second = num.torch.load('w.pt')"),
    "a class that hides a name": ("Net", "Tensor"),
    "a class of a hidden name": ("Net", "_Net"),
    "a slope that assigns elsewhere": ("l_second = num.sqrt(4)", "l_second = self.bounds = num.sqrt(4)"),
    "a last layer that is not the last": ('last_dense = "logits"', 'last_dense = "first"'),
    "an encoding that hides": ('"""net', '# coding: utf-7\n"""net'),
}


@pytest.mark.parametrize("change", ELSEWHERE)
def test_other_code_is_refused(change: str, tmp_path: Path) -> None:
    one = of_text(tmp_path, CONV)
    text = one.changed(*ELSEWHERE[change], count=-1)
    if change == "an encoding that hides":
        text = text.replace("self.clip_input(image)", "image +ACM-")  # in that encoding: a comment begins
        text = text.replace("image +ACM-", "image +ACM- self.clip_input(image)")
    assert one.refusal(text)


@pytest.mark.parametrize("line", ["", "\r", "\x0c\r", " \t\r"])
def test_what_another_encoding_hides_is_refused(line: str, tmp_path: Path) -> None:
    """In UTF-7 the class has a docstring; in UTF-8, which commands read, two comments around a method.

    A carriage return ends a line for Python, which then reads the second one, and for `tokenize` it does not.
    """

    def quotes() -> str:
        return "    # +" + b64encode('\n    """'.encode("utf-16-be")).decode().rstrip("=") + "-\n"

    one = of_text(tmp_path, CONV)
    text = one.changed('    """The network net."""\n', "HERE").replace("+", "+-")
    hidden = "    def gradient_bounds(self): return {}\n"
    text = f"{line}# coding: utf-7\n" + text.replace("HERE", f"{quotes()}{hidden}{quotes()}")
    assert hidden in text
    assert "UTF-8" in one.refusal(text)
    assert "UTF-8" in one.refusal(one.changed('"""net', '\ufeff"""net'))


# Text that Python does not run, or reads as the same names.
HARMLESS = {
    "a comment": ("input_norm = 1.5", "input_norm = 1.5  # input_norm = 9.0"),
    "code in a docstring": ('"""The network net."""', '"""input_norm = 9.0"""'),
    "an escape": ('"""The network net."""', '"""\\x41"""'),
    "another order of keywords": ("reads=4, taps=9", "taps=9, reads=4"),
    "white space": ("input_norm = 1.5", "input_norm   =   (1.5)"),
    "letters that Python takes for the same": ("F.leaky_relu", "\uff26.leaky_relu"),
}


@pytest.mark.parametrize("change", HARMLESS)
def test_text_that_says_the_same_is_accepted(change: str, tmp_path: Path) -> None:
    one = of_text(tmp_path, CONV)
    assert one.refusal(one.changed(*HARMLESS[change])) == ""


class Gated(torch.nn.Module):
    """Two maps of an input, multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(x) * torch.tanh(self.gate(x))  # type: ignore[no-any-return]


def test_the_slope_of_inputs_without_a_norm() -> None:
    """It starts at infinity, by the function of Python, which nothing may hide."""
    one = of(pipeline.from_module(Gated(), (4,), loss="cross_entropy", bounds="clip"))
    assert one.refusal() == ""
    start = "X_0 = num.Interval.around(float('inf'))"
    first = next(line for line in one.text.splitlines() if "X_0 = num.Interval.around(float(" in line)
    for hidden in (
        "float('nan')",
        "float(self.project_())",
        "float = self.project_; " + start,
        "X_0 = num.max_over(lambda float=self.project_: float('inf'), 2)",
        "X_0 = num.max_over(lambda num=self: num.exp(2), 2)",
    ):
        assert one.refusal(one.changed(first, first[: first.index("X_0")] + hidden)).startswith("slope"), hidden


def test_letters_that_only_look_the_same_are_refused(tmp_path: Path) -> None:
    one = of_text(tmp_path, CONV)
    assert one.refusal(one.text.replace("input_norm = 1.5", "input_n\u043erm = 1.5\n    input_norm = 1.5"))
    assert one.refusal(one.text.replace("second", "sec\u043end"))


@pytest.mark.parametrize(
    "text", ["", "(" * 10_000, "-" * 100_000 + "1", "x = 1\0", "def", "1" * 10_000, "\ufeff\ufeff"]
)
def test_what_is_no_such_file_is_refused(text: str, tmp_path: Path) -> None:
    assert of_text(tmp_path, CONV).refusal(text or "pass")


# What the file must say is written with names of the certificate, which could bring what it hides itself.
HOSTILE = {
    "late": "late = print()",
    "t": "t = x = print() or t",
    "x": "x: Tensor = print(), y",
    "late.weight": "late.weight.data.add_(9); self.late.weight",
    "early.weight": "early.weight; print(); self.early.weight",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_a_certificate_are_no_code(name: str, tmp_path: Path) -> None:
    one = of_text(tmp_path, FROZEN)
    known, other = one.derive(one.document["graph"]), HOSTILE[name]
    document = json.loads(json.dumps(one.document).replace(f'"{name}"', f'"{other}"'))
    code = re.sub(rf"\b{re.escape(name)}\b", other, one.text.partition("_CERTIFICATE =")[0])
    end = "Net.certificate = json.loads(_CERTIFICATE)\nModel = Net\n"
    text = f"{code}_CERTIFICATE = {json.dumps(document)!r}\n{end}"
    with pytest.raises(ForeignError):
        emitted.check(text.encode(), document, lambda _: known)


def test_the_frozen_part(tmp_path: Path) -> None:
    """What is trained may read the features alone; its bounds must hold for all of their ball."""
    one = of_text(tmp_path, FROZEN)
    assert one.refusal() == ""
    for old, new in {
        "features_norm = 0.9999999999990905": "features_norm = 1.5",
        "features_shape = (5,)": "features_shape = (6,)",
        "        return t\n": "        return early\n",
        "else self.frozen_features(x)": "else x",
        "self.clip_features(x) if": "x if",
        "        t = torch.tanh(early)\n        return t\n": "        return early\n",
    }.items():
        assert one.refusal(one.changed(old, new)), new
    early = one.text.partition("        early = self.early(x)\n")
    moved = early[0] + early[2].replace("        late =", "        early = self.early(x)\n        late =")
    assert one.refusal(moved)


@pytest.mark.parametrize(
    ("layer", "line"),
    [("dropout(0.5)", "h = F.dropout(t, 0.5, self.training)"), ("h = dense(5)", "h = self.h(t)")],
)
def test_what_is_cached_neither_draws_nor_learns(layer: str, line: str, tmp_path: Path) -> None:
    """Masks of cached features come from seeds that may be known, so an example would move those behind it."""
    one = of_text(tmp_path, FROZEN.replace("  late", f"  h = {layer.removeprefix('h = ')}\n  late"))
    assert one.refusal() == ""
    begun, rest = one.text.split("        return t\n")
    moved = f"{begun}        {line}\n        return h\n{rest.replace(f'        {line}' + chr(10), '')}"
    moved = moved.replace("t = self.clip_features(x) if", "h = self.clip_features(x) if")
    assert line in one.text
    assert "chance or training changes ['h']" in one.refusal(moved)


def test_bounds_hold_for_the_derivation_not_for_the_claims(tmp_path: Path) -> None:
    one = of_text(tmp_path, CONV)
    lower = one.document["steps"]["parameters"][0]["gradient"]
    assert one.refusal(one.changed(f"{float.fromhex(lower)!r}", f"{float.fromhex(lower) * (1 - 1e-9)!r}"))


def test_the_bounds_without_clips_go_with_the_constant_of_the_loss(tmp_path: Path) -> None:
    """K(C) = C/L·K: the runtime would divide by a larger L, and add too little noise."""
    one = of_text(tmp_path, CONV)
    text = one.changed("loss_lipschitz = 1.3442613073237353", "loss_lipschitz = 2.0")
    assert "unclipped_bounds" in one.refusal(text)


def test_the_constant_of_the_loss_may_be_off_by_what_the_runtime_rounds_up(tmp_path: Path) -> None:
    """By half of 1e-12."""
    one, known = of_text(tmp_path, CONV), 1.3442613073237353
    for excess, refused in ((4e-13, ""), (6e-13, "unclipped_bounds")):
        text = one.changed(f"loss_lipschitz = {known!r}", f"loss_lipschitz = {known * (1 + excess)!r}")
        assert refused in one.refusal(text)
        assert bool(one.refusal(text)) == bool(refused)


def test_certificates_are_read_out_of_files(tmp_path: Path) -> None:
    one = of_text(tmp_path, CONV)
    path = tmp_path / "net.py"
    path.write_text(one.text)
    assert files.read_certificate(path) == one.document
    assert files.check_module(path, one.document) == []
    path.write_text("pass")
    with pytest.raises(ValueError, match="_CERTIFICATE"):
        files.read_certificate(path)
