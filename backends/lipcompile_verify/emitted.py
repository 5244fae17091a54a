"""Whether an emitted Python file is the model of a certificate. The file is parsed, and never run.

The expected text of the file is written from the certificate (`spelling`), statement by statement, and compared
with the file: any difference and any addition is rejected. Comments, docstrings and the order of keywords mean
nothing.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import math
import re
import tokenize
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, zip_longest
from typing import Any

from .derive import OUTWARD, fixed_nodes, head, last_dense
from .document import ForeignError, canonical, parse
from .rules import OF_ANY_SIZE
from .spelling import HOLDERS, LAYERS, NODES, TIED, Use, clip, rounded, written

RUNTIME = frozenset(
    (
        *("ClipGroup", "Free", "Frobenius", "LipschitzModule", "Orthogonal", "Spectral"),
        *("decode_weights", "functional", "layers", "losses"),
    )
)
IMPORTS = (
    "from __future__ import annotations",
    "import json",
    "import torch",
    "from torch import Tensor",
    "from torch.nn import functional as F",
    "from lipcompile_torch.runtime import numbers as num",
)
# What a class of the same name would hide.
TAKEN = {*RUNTIME, "F", "Tensor", "json", "num", "self", "torch", *dir(builtins)}

MOST_TOKENS = 2**20
_PURE = (
    *(ast.Assign, ast.Return, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Call, ast.Attribute, ast.Subscript),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Lambda, ast.arguments, ast.arg),
)
_ATTRIBUTES = """
    T_destination add_module apply bfloat16 bounds buffers call_super_init certificate certified_norms
    check_parameters children clip_features clip_gradient clip_input clip_lengths clip_loss_gradient
    clipped_parameters clips compile cpu criterion cuda double dump_patches eval extra_repr features_norm
    features_shape fill_ float forget_certificates forward frozen_features gate get_buffer get_extra_state
    get_parameter get_submodule given_rows gradient_bounds guard_layers half input_norm input_parts input_shape
    input_tokens input_trusted ipu last_dense lipschitz load_initial_weights load_state_dict loss_clip loss_limit
    loss_lipschitz modules moved_bounds mtia named_buffers named_children named_modules named_parameters
    noise_strategy normaliser on_features on_views own_loss own_network parameters per_example_loss project_
    projection_slack register_backward_hook register_buffer register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook release requires_grad_ set_extra_state set_submodule share_memory slope
    split_output state_dict takes_features takes_views to to_empty train training type unclipped_bounds xpu
    zero_grad
"""
_FUNCTIONS = ("sqrt", "exp", "expm1", "log", "minimum", "maximum", "max_over", "Interval.around")
_NUMERIC = [f"num.{name}" for name in _FUNCTIONS]
_INFINITE = "float('inf')"
# Of the runtime's module, and what `forward` names: no value or layer may be called so.
RESERVED = frozenset((*_ATTRIBUTES.split(), "self", "torch", "functional", "F"))


@dataclass(frozen=True, slots=True)
class Derived:
    """The facts that the verifier derives from a graph alone: upper bounds, and the conditions of each node."""

    gradient: Mapping[str, Fraction | float]
    unclipped: Mapping[str, Fraction | float]
    loss: Fraction | float
    lipschitz: Fraction | float
    conditions: Mapping[str, Mapping[str, Any]]


Derive = Callable[[Mapping[str, Any]], Derived]


def check(source: bytes, document: Mapping[str, Any], derive: Derive) -> None:
    """Raise ForeignError unless a file is the model of a certificate, which is verified already."""
    if canonical(certificate(source)) != canonical(document):
        raise ForeignError("_CERTIFICATE", "the file carries another certificate")
    graph = document["graph"]
    with _unknown_forms():
        _File(graph, derive(graph), _parsed(_short(source))).check(derive)


def certificate(source: bytes) -> dict[str, Any]:
    """Return the certificate that an emitted file carries; raises ForeignError."""
    with _unknown_forms():
        found = {_target(one): one.value for one in _parsed(_short(source)) if isinstance(one, ast.Assign)}
        return parse(str(ast.literal_eval(found["_CERTIFICATE"])).encode())


@contextmanager
def _unknown_forms() -> Iterator[None]:
    """Make whatever a file of another form leads to a ForeignError."""
    try:
        yield
    except ForeignError:
        raise
    except (
        ArithmeticError,
        LookupError,
        MemoryError,
        RecursionError,
        SyntaxError,
        tokenize.TokenError,
        TypeError,
        ValueError,
    ) as error:
        raise ForeignError("file", f"{type(error).__name__}: {error}") from None


def _tied(nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the nodes that use the matrix of another node's layer in a way of their own, with that matrix."""
    owners: dict[str, Mapping[str, Any]] = {}
    for node in nodes:
        for name in node["parameters"].values():
            owner = owners.setdefault(name, node)
            is_own = (owner["op"], owner["parameters"]) == (node["op"], node["parameters"])
            if not is_own and len(node["parameters"]) == 1:
                yield node["name"], name


class _File:
    """A file, and the graph that it must be the model of; what is compared is taken out of `members`."""

    def __init__(self, graph: Mapping[str, Any], derived: Derived, body: list[ast.stmt]) -> None:
        self.graph, self.derived, self.body = graph, derived, [one for one in body if not _imports(one)]
        self.source, self.names = graph["input"]["name"], [node["name"] for node in graph["nodes"]]
        self.members: dict[str, ast.stmt] = {}
        self.tied = dict(_tied(graph["nodes"]))
        self.layers: dict[str, str] = {}
        self.built: dict[str, Use] = {}
        self.statements: dict[str, str] = {}
        self.weights = False

    def check(self, derive: Derive) -> None:
        """Compare all of it; raises ForeignError, or what comes of forms that are not known."""
        self._outside()
        self._spell()
        self._constructor()
        feature, frozen = self._features()
        trained_part = self._head(feature, frozen) if feature else None
        self._forward(feature, frozen)
        self._loss()
        self._bounds([self.derived, *([derive(trained_part)] if trained_part else [])])
        self._attributes()
        if self.members:
            raise ForeignError("class", _without_proof(list(self.members)))

    def _outside(self) -> None:
        """Compare all that stands outside of the class; collect what stands in it."""
        found = self.body[0] if self.body else None
        if (
            not isinstance(found, ast.ClassDef)
            or not re.fullmatch("[A-Z][A-Za-z0-9]*", found.name)
            or found.name in TAKEN
        ):
            raise ForeignError(
                "file", "after its imports it must define exactly one class, with a name that shadows nothing"
            )
        for one in found.body:
            name = one.name if isinstance(one, ast.FunctionDef) else _target(one)
            if name is None or name in self.members:
                raise ForeignError("class", f"`{_shown(one)}` is not allowed there")
            self.members[name] = one
        texts = {_target(one): one.value for one in self.body if isinstance(one, ast.Assign)}
        self.weights = "_WEIGHTS" in texts
        constants = ("_CERTIFICATE", "_WEIGHTS") if self.weights else ("_CERTIFICATE",)
        lines = [f"{name} = {str(ast.literal_eval(texts[name]))!r}" for name in constants]
        lines += [f"{found.name}.certificate = json.loads(_CERTIFICATE)", f"Model = {found.name}"]
        found.body = [ast.Pass()]
        _agree("file", self.body, [f"class {found.name}(LipschitzModule): pass", *lines])

    def _spell(self) -> None:
        """Write the layers and the statements of the graph."""
        shapes = {self.source: self.graph["input"]["shape"]}
        _check_names([self.source, *self.names, self.graph["output"]])
        used = {parameter for node in self.graph["nodes"] for parameter in node["parameters"].values()}
        if used != self.graph["parameters"].keys():
            raise ForeignError("parameters", f"no node uses {sorted(self.graph['parameters'].keys() - used)}")
        for node in self.graph["nodes"]:
            name = node["name"]
            counts = self.derived.conditions.get(name, {})
            use = Use(self.graph, node, [shapes[operand] for operand in node["inputs"]], counts)
            shapes[name] = node["shape"]
            self.statements[name] = f"{name} = {self._call(node, use)}"

    def _call(self, node: Mapping[str, Any], use: Use) -> str:
        name, given = node["name"], ", ".join(node["inputs"])
        if name in self.tied:
            self._add(name, name, use.spelt(TIED))
            return f"self.{name}({given}, self.{self.tied[name]})"
        if node["parameters"]:
            return f"self.{self._layer(name, node['parameters'], use)}({given})"
        if node["op"] not in HOLDERS:
            return use.spelt(NODES)
        if name in self.layers:
            raise ForeignError(name, "it needs a layer for its constants, but the name of that layer is taken")
        self.layers[name] = use.spelt(HOLDERS)
        return f"self.{name}({given})"

    def _layer(self, name: str, parameters: Mapping[str, str], use: Use) -> str:
        """Return the layer that holds the parameters of a node, built for the size that its first use has."""
        owners = {parameter.removesuffix(f".{role}") for role, parameter in parameters.items()}
        owner = min(owners)
        first = self.built.setdefault(owner, use)
        text = (use.sized_as(first) if use.node["op"] in OF_ANY_SIZE else use).spelt(LAYERS)
        _check_names(owners)
        if {f"{owner}.{role}" for role in parameters} != {*parameters.values()}:
            raise ForeignError(name, f"the layer `{owner}` cannot hold its parameters")
        self._add(name, owner, text)
        return owner

    def _add(self, node: str, layer: str, text: str) -> None:
        if self.layers.setdefault(layer, text) != text:
            raise ForeignError(node, f"the layer `{layer}` cannot hold its parameters")

    def _constructor(self) -> None:
        first, *found, last = self._method("__init__", "self", "None")
        frozen = [name for name, one in self.graph["parameters"].items() if not one["trainable"]]
        lines = [f"self.{owner} = {text}" for owner, text in self.layers.items()]
        wanted = _parsed("\n".join([*lines, *(f"self.{name}.requires_grad_(False)" for name in frozen)]))
        drawn = [one.value for one in ast.walk(last) if isinstance(one, ast.Constant)]
        loaded = f"decode_weights(_WEIGHTS){f', drawn={drawn!r}' if drawn else ''}"
        start = f"self.load_initial_weights({loaded})" if self.weights else "self.project_()"
        _agree("__init__", [first, last], ["super().__init__()", start])
        _agree("__init__", sorted(found, key=ast.unparse), map(ast.unparse, sorted(wanted, key=ast.unparse)))

    def _features(self) -> tuple[str, list[str]]:
        """Return what `frozen_features` returns, and the nodes that it computes; nothing without it."""
        if "frozen_features" not in self.members:
            return "", []
        found = self._method("frozen_features", f"self, {self.source}: Tensor", "Tensor")
        frozen = [name for name in self.names if name in {_target(one) for one in found}]
        inside, outside = self._reads(frozen), self._reads(set(self.names) - set(frozen))
        if len(outside) != 1 or not outside <= set(frozen) or not inside <= {self.source}:
            raise ForeignError(
                "frozen_features", f"the trained part reads {sorted(outside)}, not only the features"
            )
        moving = sorted(set(frozen) - set(fixed_nodes(self.graph)))
        if moving:  # what is cached is drawn once, from seeds that nobody has made secret, and is never trained
            raise ForeignError("frozen_features", f"chance or training changes {moving}")
        (feature,) = outside
        lines = [f"{self.source} = self.clip_input({self.source})", *(self.statements[name] for name in frozen)]
        _agree("frozen_features", found, [*lines, f"return {feature}"])
        return feature, frozen

    def _reads(self, names: Collection[str]) -> set[str]:
        """Return what nodes read that is none of them."""
        return {x for node in self.graph["nodes"] if node["name"] in names for x in node["inputs"]} - set(names)

    def _head(self, feature: str, frozen: Collection[str]) -> Mapping[str, Any]:
        """Return the graph of what reads the features."""
        found = head(self.graph, feature, frozen, self._number("features_norm"))
        self._literal("features_shape", written(found["input"]["shape"]))
        return found

    def _forward(self, feature: str, frozen: Collection[str]) -> None:
        entry = f"{self.source} = self.clip_input({self.source})"
        if feature:
            given = f"self.clip_features({self.source}) if self.takes_features"
            entry = f"{feature} = {given} else self.frozen_features({self.source})"
        lines = [entry, *(self.statements[name] for name in self.names if name not in frozen)]
        found = self._method("forward", f"self, {self.source}: Tensor", "Tensor")
        _agree("forward", found, [*lines, f"return self.release({self.graph['output']})"])

    def _loss(self) -> None:
        name, attributes = self.graph["loss"]["name"], self.graph["loss"]["attributes"]
        keywords = "".join(f", {key}={written(value)}" for key, value in attributes.items())
        function = {"bce": "binary_cross_entropy"}.get(name, name)
        found = self._method("per_example_loss", "self, output: Tensor, target: Tensor", "Tensor")
        further = ", self.own_loss" if name == "own" else ""
        _agree("per_example_loss", found, [f"return losses.{function}(output, target{further}{keywords})"])

    def _bounds(self, all_derived: Sequence[Derived]) -> None:
        """Check the numbers that noise rests on, for the whole and for what reads features."""
        trained = {name for name, one in self.graph["parameters"].items() if one["trainable"]}
        clipped = {name for group in self.graph.get("clips", ()) for name in group["parameters"]}
        loss, bounds = self._number("loss_lipschitz"), self._numbers("bounds")
        alias = ast.unparse(self.members.get("unclipped_bounds", ast.Pass())) == "unclipped_bounds = bounds"
        unclipped = bounds if alias and self._assigned("unclipped_bounds") else self._numbers("unclipped_bounds")
        if not bounds.keys() == unclipped.keys() == trained:
            raise ForeignError("bounds", f"they cover {sorted(bounds)}, not {sorted(trained)}")
        for derived in all_derived:
            _at_least("loss_lipschitz", loss, derived.loss)
            for name in derived.gradient:
                _at_least(f"bounds[{name}]", bounds[name], derived.gradient[name])
                _at_least(f"unclipped_bounds[{name}]", unclipped[name], derived.unclipped[name])
                if name in clipped:  # whatever the loss hands on
                    continue
                # A loss clipped to C < L has C/L times the bound, which the runtime rounds up by 1e-12.
                share = Fraction(derived.unclipped[name]) * Fraction(loss) / (Fraction(derived.loss) or 1)
                _at_least(f"unclipped_bounds[{name}]", Fraction(unclipped[name]) * OUTWARD, share)

    def _attributes(self) -> None:
        """Compare the domain; check what certified accuracy reads, as far as it is."""
        source = self.graph["input"]
        self._literal("input_shape", written(source["shape"]))
        self._literal("input_norm", 'float("inf")' if source["norm"] is None else rounded(source["norm"], "b"))
        clips = self.graph.get("clips")
        if clips:
            self._literal("clips", f"[{', '.join(map(clip, clips))}]")
        if source["tokens"]:
            self._literal("input_tokens", "True")
        else:
            self._literal("input_trusted", str(source["trusted"]))
        _at_least("lipschitz", self._number("lipschitz"), self.derived.lipschitz)
        if "input_parts" in self.members:  # entries of one example, in any order
            ast.literal_eval(self._assigned("input_parts"))
        if "noise_strategy" in self.members:  # its sensitivity is computed by the runtime, whatever it says
            ast.literal_eval(self._assigned("noise_strategy"))
        if "slope" in self.members:
            last = last_dense(self.graph)
            layer = None if last is None else last["parameters"]["weight"].removesuffix(".weight")
            self._literal("last_dense", repr(layer))
            _check_pure(self._method("slope", "self, u: dict[str, num.Number]", "num.Number"))

    # Members of the class: each is taken once

    def _method(self, name: str, arguments: str, returned: str) -> list[ast.stmt]:
        """Return the body of a method of this signature, without decorators."""
        found = self.members.pop(name, None)
        if not isinstance(found, ast.FunctionDef):
            raise ForeignError("class", f"it has no method {name}")
        body, found.body = found.body, [ast.Pass()]
        _agree(name, [found], [f"def {name}({arguments}) -> {returned}: pass"])
        return body

    def _assigned(self, name: str) -> ast.expr:
        found = self.members.pop(name, None)
        if not isinstance(found, ast.Assign):
            raise ForeignError("class", f"it has no attribute {name}")
        return found.value

    def _literal(self, name: str, text: str) -> None:
        _agree(name, [ast.Return(self._assigned(name))], [f"return {text}"])

    def _number(self, name: str) -> float:
        return _double(name, self._assigned(name))

    def _numbers(self, name: str) -> dict[str, float]:
        found = self._assigned(name)
        if not isinstance(found, ast.Dict) or None in found.keys:
            raise ForeignError(name, "it is not a dictionary of numbers")
        pairs = zip(found.keys, found.values, strict=True)
        return {ast.literal_eval(key): _double(name, value) for key, value in pairs if key}


def _without_proof(members: Sequence[str]) -> str:
    """Say which members no claim of the certificate covers."""
    if members == ["gradient_bounds"]:
        # What `compile --follow-weights` writes.
        return "gradient_bounds computes bounds from the current weights; a certificate covers only constraints"
    return f"no claim covers {', '.join(members)}"


def _double(name: str, value: ast.expr) -> float:
    number = math.inf if ast.unparse(value) == _INFINITE else ast.literal_eval(value)
    if not isinstance(number, float):
        raise ForeignError(name, f"`{_shown(value)}` is not a float literal")
    return number


def _at_least(name: str, found: Fraction | float, derived: Fraction | float) -> None:
    if not found >= derived:
        raise ForeignError(
            name, f"{float(found)!r} is below {float(derived)!r}, the bound that the verifier derives"
        )


def _check_names(names: Iterable[str]) -> None:
    """Refuse names that Python may read otherwise, or that stand for something else in the file."""
    for name in names:
        plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name[0] != "_"
        if not plain or name in RESERVED:
            raise ForeignError(name, "an emitted file may not use this name for a value or a layer")


def _check_pure(program: Sequence[ast.stmt]) -> None:
    """Refuse a program that does more than compute numbers."""
    for one in (inner for statement in program for inner in ast.walk(statement)):
        called = isinstance(one, ast.Call) and ast.unparse(one.func) not in _NUMERIC
        called = called and ast.unparse(one) != _INFINITE
        hides = isinstance(one, ast.Assign) and _target(one) in (None, "num", "float")
        hides = hides or (isinstance(one, ast.arg) and one.arg in ("num", "float"))
        if not isinstance(one, _PURE) or called or hides:
            raise ForeignError("slope", f"`{_shown(one)}` is not a plain computation of a number")


def _imports(one: ast.stmt) -> bool:
    """Whether this is an import, which must be one of those that emitted files need."""
    if not isinstance(one, ast.Import | ast.ImportFrom):
        return False
    text = ast.unparse(one)
    head, _, names = text.partition(" import ")
    if text not in IMPORTS and not (head == "from lipcompile_torch" and {*names.split(", ")} <= RUNTIME):
        raise ForeignError("imports", f"`{_shown(one)}` is not an import that an emitted file needs")
    return True


def _short(source: bytes) -> str:
    """Return the text of a file of not too many tokens: its tree takes a thousand bytes for each, strings not
    counted.

    It must be UTF-8, which whoever runs it may take it for: what another encoding hides in a string would run.
    To Python a line ends at a carriage return, too, and what declares an encoding may stand behind one.
    """
    lines = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(lines).readline)
    if encoding != "utf-8":
        raise ForeignError("file", f"it declares the encoding {encoding:.99}, but emitted files are UTF-8")
    tokens = tokenize.tokenize(io.BytesIO(lines).readline)
    if any(True for _ in islice(tokens, MOST_TOKENS, None)):
        raise ForeignError("file", f"it has more than {MOST_TOKENS} tokens")
    return lines.decode()


def _parsed(source: str) -> list[ast.stmt]:
    """Return the statements of a file, without docstrings, keywords in the order of their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    for one in ast.walk(tree):
        if isinstance(one, ast.Call):
            one.keywords.sort(key=lambda argument: argument.arg or "")
        elif isinstance(one, ast.Module | ast.ClassDef | ast.FunctionDef):
            del one.body[: ast.get_docstring(one, clean=False) is not None]
    return tree.body


def _target(one: ast.stmt) -> str | None:
    """Return the one name that a statement assigns to."""
    if isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name):
        return one.targets[0].id
    return None


def _agree(where: str, found: Iterable[ast.AST], wanted: Iterable[str]) -> None:
    """Compare statements with a text; raises ForeignError."""
    for one, other in zip_longest(found, _parsed("\n".join(wanted))):
        if not _same(one, other):
            raise ForeignError(where, f"the file says `{_shown(one)}`, the certificate `{_shown(other)}`")


def _same(one: Any, other: Any) -> bool:
    """Whether two trees are equal, numbers and strings included; not recursive, for sums may be long."""
    pairs = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, ast.AST):
            pairs += [(getattr(one, name, None), getattr(other, name, None)) for name in one._fields]
        elif isinstance(one, list):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif repr(one) != repr(other):
            return False
    return True


def _shown(one: ast.AST | None) -> str:
    text = "nothing" if one is None else ast.unparse(one)
    return text if len(text) <= 200 else f"{text[:200]}…"
