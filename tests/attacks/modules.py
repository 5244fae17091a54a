"""Random models as text, over every spelling of the language: what a user could have written.

`Writer` grows a body statement by statement and keeps what the front end accepts, so that most models are legal.
It knows the names of the arguments and their kinds, never what an op computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from random import Random
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lipcompile.core.record import AnyOp, Shape, Spelling
from lipcompile.frontends.lip.lowering import lower
from lipcompile.frontends.lip.parser import parse
from lipcompile.frontends.options import ModelOptions
from lipcompile.ops.registry import layers
from lipcompile.ops.schema import Axis, Extra, Index, Padding, PerAxis

from .catalogue import LOSS_ATTACKS
from .draw import Draw
from .families.losses import image, one, table

LARGEST = 96
JUMPS = ("sign", "hard_shrink")
# Nothing before them is trained: see their own tests.
UNTRAINED = ("hsv", "whitened_scattering2d", "mirrored_scattering2d", "whitened_patches")
CELLS = ("rnn", "gru", "lstm")
MERGES = ("concat", "add", "mean", "multiply", "maximum", "minimum")
# Arguments that are numbers, by name: what they may be. Others lie between 1/4 and 2.
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "slope": ("0.3", "-1.5", "2", "1"),
    "alpha": ("0.7", "-1.25", "2", "1"),
    "offset": ("0", "0.5", "0.9", "1/3"),
    "low": ("-1", "-0.3", "0.25", "-2"),
    "high": ("0.5", "1", "2", "-0.1"),
    "angle": ("0.3", "2", "-1", "1.5707963"),
    "probability": ("0", "0.25", "0.5", "0.9"),
    "dropout": ("0", "0.3"),
    "eps": ("0.01", "0.5"),
    "beta": ("0.75", "1", "0.5", "0"),
    "k": ("1", "2", "0.3"),
}
WHOLE: Mapping[str, tuple[int, ...]] = {
    "size": (1, 2, 2, 3),
    "groups": (1, 1, 2, 3),
    "heads": (1, 2, 3),
    "p": (1, 2, 3, 4),
    "scales": (1,),
    "angles": (2, 3),  # the filters of one are cut short: scattering.md
    "order": (1, 2),
}


def probe(shape: Shape, statements: Sequence[str]) -> Shape | None:
    """Return the shape that the statements make of an example of this shape, None if they are refused."""
    start = f"input x: {_tensor(shape)}, norm <= 1" if shape else "input x: tensor[1], norm <= 1 ; reduce_sum"
    text = f"model m {{ {start} ; {' ; '.join(statements)} ; identity }}"
    graph, problems = lower(parse(text, "probe").models[0], {}, ModelOptions())
    return None if graph is None or any(p.severity == "error" for p in problems) else graph.shape(graph.output)


def several(values: Sequence[object]) -> str:
    """Write a tuple."""
    return f"({values[0]},)" if len(values) == 1 else f"({', '.join(map(str, values))})"


def _tensor(shape: Shape) -> str:
    return f"tensor[{', '.join(map(str, shape))}]"


@dataclass
class Writer:
    """Writes one model."""

    rng: Random
    names: int = 0
    labels: list[tuple[str, Shape]] = field(default_factory=list)

    # Values of arguments

    def number(self, name: str) -> str:
        return self.rng.choice(NUMBERS.get(name, ("0.25", "0.5", "1", "2", "1/3")))

    def value(self, op: AnyOp, name: str, kind: Any, shape: Shape, rank: int) -> str:
        pick, choice = self.rng.randint, self.rng.choice
        if get_origin(kind) is Literal:
            return str(choice(get_args(kind)))
        if kind == PerAxis:
            return self.per_axis(rank, lambda: pick(1, 3))
        if kind == Extra:
            return self.per_axis(rank, lambda: pick(0, 1))
        if kind == Padding:
            side = (lambda: f"({pick(0, 2)}, {pick(0, 2)})") if rank > 1 or pick(0, 1) else lambda: str(pick(0, 2))
            return self.per_axis(rank, side) if pick(0, 1) else str(pick(0, 1))
        if kind == Axis:
            return str(pick(-len(shape), max(len(shape) - 1, 0)))
        if kind == Index or name == "stop":
            return str(pick(0, 3))
        if kind is int:
            return str(choice(WHOLE.get(name, (1, 2, 3, 4, 6))))
        if kind is bool:
            return choice(("true", "false"))
        if kind == tuple[int, ...]:
            return self.integers(op, name, shape)
        return self.number(name)

    def per_axis(self, rank: int, entry: Callable[[], object]) -> str:
        if self.rng.random() < 0.5:
            found = str(entry())
            if not found.startswith("("):
                return found
        return several([entry() for _ in range(rank)])

    def integers(self, op: AnyOp, name: str, shape: Shape) -> str:
        rng = self.rng
        if not shape:
            return rng.choice(("(1,)", "(0,)", "(1, 1)"))
        if name == "indices":
            found = [rng.randrange(max(shape)) for _ in range(rng.randint(1, 4))]
        elif op.name == "expand":
            found = [rng.choice((own if own > 1 else 3, -1)) for own in shape]
            found = [2, *found] if rng.random() < 0.3 else found
        elif op.name == "reshape":
            found = rng.choice(self.factors(prod(shape)))
        elif op.name == "transpose":
            found = rng.sample(range(len(shape)), len(shape))
        else:
            found = rng.sample(range(-len(shape), len(shape)), rng.randint(1, len(shape)))
        return several(found)

    @staticmethod
    def factors(entries: int) -> list[list[int]]:
        pairs = [[a, entries // a] for a in range(1, entries + 1) if entries % a == 0]
        triples = [[a, b, -1] for a, rest in pairs for b in range(1, rest + 1) if rest % b == 0]
        return [[entries], *pairs, *triples]

    # Layers

    def call(self, name: str, op: AnyOp, spelling: Spelling, shape: Shape, operands: Sequence[str] = ()) -> str:
        hints = get_type_hints(op.attributes, include_extras=True)
        rank = spelling.rank if spelling.rank is not None else max(len(shape) - 1, 1)
        preset = {key for key, _ in spelling.preset}
        fields = () if name in ("add", "mean", "bias", "position") else dataclasses.fields(op.attributes)
        given = {}
        for entry in fields:
            optional = entry.default is not dataclasses.MISSING
            if entry.name not in preset and not (optional and self.rng.random() < 0.5):
                given[entry.name] = self.value(op, entry.name, hints[entry.name], shape, rank)
        if {"floor", "eps"} <= set(hints):
            dropped = self.rng.choice(("floor", "eps"))
            given.pop(dropped, None)
            kept = "eps" if dropped == "floor" else "floor"
            given.setdefault(kept, self.number(kept))
        written = [f"{key}={value}" for key, value in given.items()]
        arguments = [*operands, *written, *self.constraints(op)]
        return f"{name}({', '.join(arguments)})" if arguments else name

    def constraints(self, op: AnyOp) -> list[str]:
        kinds = {rule.argument for rule in op.parameters}
        found = []
        if "constraint" in kinds and self.rng.random() < 0.6:
            found.append(
                "constraint="
                + self.rng.choice(("spectral(1.5)", "orthogonal", "frobenius(2)", "spectral(0.5)", "fixed"))
            )
        if "bias" in kinds and self.rng.random() < 0.5:
            found.append(f"bias={self.rng.choice(('0.5', '1', '0.1'))}")
        if op.name in ("bias",):
            return [self.rng.choice(("0.5", "1"))]
        if "bound" in kinds and self.rng.random() < 0.7:
            found.append(f"bound={self.rng.choice(('0.5', '1', '2'))}")
        return found

    def layer(self, shape: Shape) -> str:
        """A call of any spelling on the value above it."""
        usual = self.rng.random()
        if usual < 0.15:
            return f"dense({self.rng.randint(1, 6)}{self.tail()})"
        if usual < 0.2 and len(shape) == 2:
            sequence = self.rng.choice(("true", "false"))
            return f"{self.rng.choice(CELLS)}({self.rng.randint(1, 3)}, sequence={sequence}{self.tail()})"
        known = [n for n, (op, _) in layers().items() if op.operands[0] == 1 and op.operands[1] != None]  # noqa: E711
        known = [n for n in known if n not in (*JUMPS, *UNTRAINED) and layers()[n][0].takes == "reals"]
        name = self.rng.choice(known)
        return self.call(name, *layers()[name], shape)

    def tail(self) -> str:
        found = self.constraints(layers()["dense"][0])
        return "".join(f", {argument}" for argument in found)

    # Statements

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def body(self, shape: Shape, length: int, depth: int = 0) -> tuple[list[str], Shape]:
        """Return statements and the shape of the last value."""
        written: list[str] = []
        known: list[tuple[str, Shape]] = []
        current = shape
        while length > 0:
            length -= 1
            for _ in range(8):
                name = self.name()
                statement = self.statement(current, known, depth, name)
                found = probe(shape, [*written, statement])
                if found is None or prod(found) > LARGEST:
                    continue
                written.append(statement)
                current = found
                if statement.startswith(f"{name} ="):
                    known.append((name, found))
                break
        return written, current

    def statement(self, shape: Shape, known: Sequence[tuple[str, Shape]], depth: int, name: str) -> str:
        kind = self.rng.random()
        if kind < (0.12, 0.05, 0)[depth]:
            return self.branch(shape, depth)
        if kind < (0.2, 0.12, 0)[depth]:
            return self.residual(shape, depth)
        if kind < 0.24 and depth < 2:
            return f"repeat {self.rng.randint(1, 3)} {{ {self.inner(shape, depth)} }}"
        if kind < 0.27 and depth < 2:
            return f"frozen {{ {self.inner(shape, depth)} }}"
        if kind < 0.33 and shape:
            return self.pieces(shape, name)
        if kind < 0.42 and known:
            return f"{name} = {self.joined(known, shape)}"
        if kind < 0.47 and shape:
            return self.tied(shape)
        prefix = f"{name} = " if self.rng.random() < 0.4 else ""
        if kind < 0.52 and known:
            value, own = self.rng.choice(known)
            op = self.rng.choice([n for n, (o, _) in layers().items() if o.operands == (1, 1)])
            if layers()[op][0].takes == "reals" and op not in (*JUMPS, *UNTRAINED):
                return prefix + self.call(op, *layers()[op], own, [value])
        return prefix + self.layer(shape)

    def inner(self, shape: Shape, depth: int) -> str:
        return " ; ".join(self.body(shape, self.rng.randint(1, 3), depth + 1)[0]) or "identity"

    def branch(self, shape: Shape, depth: int) -> str:
        merge = self.rng.choice(MERGES)
        count = 2 if merge == "multiply" else self.rng.randint(2, 3)
        first, made = self.body(shape, self.rng.randint(1, 3), depth + 1)
        bodies = [" ; ".join(first) or "identity"]
        for _ in range(count - 1):
            bodies.append(self.fitting(shape, made, depth))
        if merge == "concat" and self.rng.random() < 0.5:
            merge = f"concat(axis={self.rng.randint(-len(made), max(len(made) - 1, 0))})"
        return f"branch {' '.join(f'{{ {body} }}' for body in bodies)} -> {merge}"

    def fitting(self, shape: Shape, wanted: Shape, depth: int) -> str:
        """A body that makes `wanted`, or something that broadcasts to it, or not."""
        body, made = self.body(shape, self.rng.randint(1, 2), depth + 1)
        if made != wanted:
            target = tuple(self.rng.choice((1, s, s)) for s in wanted) if self.rng.random() < 0.3 else wanted
            if self.rng.random() < 0.2 and len(target) > 1:
                target = target[1:]
            body += ["flatten", f"dense({prod(target)}{self.tail()})", f"reshape({', '.join(map(str, target))})"]
        return " ; ".join(body) or "identity"

    def residual(self, shape: Shape, depth: int) -> str:
        kind = self.rng.choice(("add", "mean", "convex(0.25)", "convex(1/3)"))
        return f"residual({kind}) {{ {self.fitting(shape, shape, depth)} }}"

    def pieces(self, shape: Shape, name: str) -> str:
        """Split, blocks on the parts, and a merge."""
        axis = self.rng.randrange(len(shape))
        counts = [n for n in (2, 3, 4) if shape[axis] % n == 0] or [1]
        parts = [f"{name}_{i}" for i in range(self.rng.choice(counts))]
        own = (*shape[:axis], shape[axis] // len(parts), *shape[axis + 1 :])
        written = [f"{', '.join(parts)} = split({len(parts)}, axis={axis})"]
        made, wanted = [], own
        for index, part in enumerate(parts):
            op = self.rng.choice(("dense", "tanh", "groupsort", "scale", "softplus", "identity", "center"))
            call = self.call(op, *layers()[op], own, [part])
            if op == "dense":
                call = f"dense({part}, {wanted[-1]}{self.tail()})"
            written.append(f"{name}_b{index} = {call}")
            made.append(f"{name}_b{index}")
        if self.rng.random() < 0.2:
            made.append(self.rng.choice((*parts, *made)))
        merge = self.rng.choice(MERGES)
        if merge == "multiply":
            made = (made * 2)[:2]
        if len(made) < 2:
            made = [*made, made[0]]
        ending = f", axis={axis}" if merge == "concat" and self.rng.random() < 0.7 else ""
        if len(made) > 2 and self.rng.random() < 0.4:
            written.append(f"{name}_m = {self.rng.choice(('concat', 'add', 'maximum'))}({made[0]}, {made[1]})")
            made = [f"{name}_m", *made[2:]]
        return f"{' ; '.join(written)} ; {name} = {merge}({', '.join(made)}{ending})"

    def joined(self, known: Sequence[tuple[str, Shape]], shape: Shape) -> str:
        """A merge of values with names, or attention from one to the other."""
        names = [self.rng.choice(known)[0] for _ in range(self.rng.choice((2, 2, 3)))]
        merge = self.rng.choice((*MERGES, "attention", "dot_product_attention"))
        if merge == "dot_product_attention":
            operands = ", ".join((names * 3)[:3])
            return f"{merge}({operands}{self.rng.choice(('', ', scale=0.5', ', causal=true', ', dropout=0.3'))})"
        if merge == "attention":
            dropped = self.rng.choice(("", ", dropout=0.3"))
            heads = f"heads={self.rng.randint(1, 2)}{dropped}{self.tail_of_four()}"
            return f"attention({', '.join(names[:2])}, {heads})"
        if merge == "multiply":
            names = names[:2]
        if merge == "concat" and self.rng.random() < 0.5:
            names.append(f"axis={self.rng.randrange(len(shape) or 1)}")
        return f"{merge}({', '.join(names)})"

    def tail_of_four(self) -> str:
        return self.rng.choice(("", ", constraint=orthogonal", ", constraint=frobenius(2)"))

    def tied(self, shape: Shape) -> str:
        """One weight, used twice or more."""
        label, width = self.name(), shape[-1]
        tail = self.tail()
        call = self.rng.choice(
            (
                f"dense({width}{tail}, share={label!r})",
                f"scale(share={label!r})",
                f"prelu(1.5, share={label!r})",
                f"bias(0.5, share={label!r})",
                f"householder(share={label!r})",
                f"conv1d({shape[0]}, kernel=3, padding=1{tail}, share={label!r})",
                f"conv2d({shape[0]}, kernel=3, padding=1{tail}, share={label!r})",
                f"attention(1, share={label!r})",
                f"rnn({width}, sequence=true, share={label!r})",
                f"lstm({width}, sequence=true, share={label!r})",
            )
        ).replace("'", '"')
        between = self.rng.choice(("tanh", "abs", "softplus", "groupsort(1)", "center"))
        if self.rng.random() < 0.3:
            return f"branch {{ {call} }} {{ {between} ; {call} }} -> {self.rng.choice(MERGES)}"
        return f"{call} ; {between} ; {call}"

    # Whole models

    def model(self) -> list[str]:
        """Return the declarations and statements of a model, one a line."""
        rng = self.rng
        if rng.random() < 0.12:
            entries, width = rng.randint(2, 5), rng.randint(1, 4)
            shape: Shape = (rng.randint(1, 5),)
            first = [f"input x: tokens[{shape[0]}]", f"embedding({entries}, {width}, bound=1.5)"]
            shape = (*shape, width)
        else:
            shape = rng.choice(
                (
                    (rng.randint(1, 6),),
                    (rng.randint(1, 5), rng.randint(1, 6)),
                    (rng.randint(1, 4), rng.randint(2, 6)),
                    (rng.randint(1, 4), rng.randint(2, 5), rng.randint(2, 5)),
                    (rng.choice((2, 4)), 4, 4),
                    (rng.randint(1, 2), 2, 3, 3),
                )
            )
            first = [f"input x: {_tensor(shape)}, norm <= {rng.choice(('0.1', '1', '2', '8', '1/3'))}"]
        if rng.random() < 0.08:
            first.append(f"frozen {{ dense({rng.randint(1, 5)}) ; {rng.choice(JUMPS)} }}")
            shape = probe(shape, first[-1:]) or shape
        if rng.random() < 0.5:
            body, shape = self.spotlight(shape)
        else:
            body, shape = self.body(shape, rng.randint(1, 6))
        return [*first, *body, *self.ending(shape)]

    def spotlight(self, shape: Shape) -> tuple[list[str], Shape]:
        """One layer of any spelling, whatever it takes to have its arguments accepted, after one with weights."""
        before = [self.rng.choice(("dense(4)", "dense(6, bias=0.5)", "scale", "bias(1)", "identity"))]
        after = self.rng.choice(((), ("softplus",), ("tanh", "dense(3)")))
        known = [n for n, (op, _) in layers().items() if op.operands[0] == 1 and op.takes == "reals"]
        known = [n for n in known if n not in (*JUMPS, *UNTRAINED, "add", "mean", "concat")]
        for _ in range(200):
            name = self.rng.choice(known)
            statements = [*before, self.call(name, *layers()[name], probe(shape, before) or shape), *after]
            found = probe(shape, statements)
            if found is not None and prod(found) <= LARGEST:
                return statements, found
        return before, probe(shape, before) or shape

    def ending(self, shape: Shape) -> list[str]:
        rng = self.rng
        name = rng.choice(list(LOSS_ATTACKS))
        attack = LOSS_ATTACKS[name]
        clip = [f"clip_gradient({rng.choice(('0.1', '1'))})"] if rng.random() < 0.15 else []
        if attack.shape is one:
            logits: Shape = (1,)
            end = ["flatten", f"dense(1{self.tail()})"]
        elif attack.shape is table:
            classes = rng.randint(2, 4)
            logits = (*shape[:-1], classes) if len(shape) > 1 else (prod(shape), classes)
            end = ([] if len(shape) > 1 else [f"reshape({prod(shape)}, 1)"]) + [f"dense({classes}{self.tail()})"]
        elif attack.shape is image:
            logits = (rng.randint(2, 4), rng.randint(1, 3))
            end = ["flatten", f"dense({prod(logits)}{self.tail()})", f"reshape({logits[0]}, {logits[1]})"]
        elif prod(shape) > 1 and rng.random() < 0.3:
            logits, end = (prod(shape),), ["flatten"]
        else:
            logits = (rng.randint(2, 5),)
            end = ["flatten", f"dense({logits[0]}{self.tail()})"]
        return [*end, *clip, f"loss {name}({arguments(attack.attributes(Draw(rng), logits))})"]


def arguments(record: Any) -> str:
    """Write an attribute record as arguments."""
    values = {entry.name: getattr(record, entry.name) for entry in dataclasses.fields(record)}
    return ", ".join(f"{name}={_literal(value)}" for name, value in values.items() if value not in (None, ()))


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return several([_literal(item) for item in value])
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else str(value)


def random_model(seed: int) -> list[str]:
    """Return the lines of a random model: an input, statements, a loss."""
    return Writer(Random(f"module {seed}")).model()
