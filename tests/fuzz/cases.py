"""A case: a file and the options that it is checked with, made from a seed and a number."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.fuzz import byte_changes, lip_changes, onnx_changes

NUMBERS = ("1", "0.5", "1e-300", "1e300", "0", "-1", "1/3", "1e9999999999", "nan", "", "9" * 400)
LOSSES = (
    *(
        "cross_entropy",
        "cross_entropy:temperature=10",
        "cross_entropy:label_smoothing=0.1",
        "hinge",
        "nll",
        "bce",
        "kr",
    ),
    *(
        "cosine:floor=0.1",
        "squared_error:target_norm=1",
        "huber",
        "token_cross_entropy",
        "pixel_cross_entropy",
        "multi_margin:p=2",
        "mse",
    ),
    *(
        "cross_entropy:class_weights=(1,2,3)",
        "cosine:floor=((1",
        "hinge:margin=1e400",
        "cross_entropy:temperature=1e-300",
    ),
)
CONSTRAINTS = (
    "spectral:1",
    "spectral:0.3",
    "orthogonal",
    "frobenius:2",
    "keep",
    "spectral:0",
    "frobenius:1e300",
    "ball:1",
)
GLOBS = ("*", "dense*", "*.bias", "nothing", "[", "*a*a*a*a*b", "?")
LIMITS = (
    "nodes=3",
    "nodes=300",
    "depth=2",
    "digits=5",
    "constants=1K",
    "counts=4",
    "file-size=100",
    "text-size=10",
    "x=1",
)
SHAPES = ("6", "2,5,6", "x=3,4", "0", "99999999,9", "3,")


@dataclass(frozen=True)
class Seed:
    """A file that a case begins with; `suffix` is its format."""

    name: str
    suffix: str
    content: bytes


@dataclass(frozen=True)
class Case:
    """What `lipcompile check` is run with."""

    number: int
    origin: str
    suffix: str
    content: bytes
    options: tuple[str, ...]


def case(seed: int, number: int, corpus: list[Seed]) -> Case:
    """Return the case of that number; nothing else has an influence on it."""
    random = Random(f"{seed} {number}")
    start = random.choice(corpus)
    content = _content(random, start, corpus)
    return Case(number, start.name, start.suffix, content, _options(random, start.suffix))


def _content(random: Random, start: Seed, corpus: list[Seed]) -> bytes:
    kin = [seed for seed in corpus if seed.suffix == start.suffix]
    if random.random() < 0.06:
        return byte_changes.changed(random, start.content, random.choice(corpus).content)
    if start.suffix == ".onnx":
        return _onnx(random, start, random.choice(kin))
    text, others = (
        start.content.decode("utf-8", "replace"),
        [seed.content.decode("utf-8", "replace") for seed in kin],
    )
    return lip_changes.changed(random, text, others).encode("utf-8", "surrogatepass")


def _onnx(random: Random, start: Seed, other: Seed) -> bytes:
    try:
        return onnx_changes.changed(random, start.content, other.content)
    except Exception as error:
        if type(error).__name__ not in ("DecodeError", "EncodeError", "IndexError"):
            raise
        return byte_changes.changed(random, start.content, other.content)  # a crasher that is no message


def _options(random: Random, suffix: str) -> tuple[str, ...]:
    """Return options, few at a time."""
    names = ("width", "depth", "n", "c") if suffix == ".lip" else ("depth",)
    choices = {
        "--format": ("json", "json", "sarif", "text"),
        "--input-norm": NUMBERS,
        "--loss": LOSSES,
        "--constraint": CONSTRAINTS,
        "--bias-bound": NUMBERS,
        "--freeze": GLOBS,
        "--set": tuple(
            f"{name}={value}" for name in names for value in ("1", "3", "12", "1000", "1e9999999", "x")
        ),
        "--limit": LIMITS,
        "--input-shape": SHAPES,
    }
    likely = {"--format": 0.6, "--input-norm": 0.4, "--loss": 0.4, "--constraint": 0.15}
    given = [name for name in choices if random.random() < likely.get(name, 0.02)]
    verbose = ["-v"] if random.random() < 0.1 else []
    kept = "keep" if suffix == ".onnx" else "spectral:2"
    usual = {"--input-norm": "1", "--loss": "cross_entropy", "--constraint": kept}
    pairs = (
        (name, usual[name] if name in usual and random.random() < 0.8 else random.choice(choices[name]))
        for name in given
    )
    return (*(word for pair in pairs for word in pair), *verbose)
