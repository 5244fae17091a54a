"""`lipcompile certify`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from lipcompile.cli.shared.arguments import format_option, module_argument, weights_option
from lipcompile.cli.shared.inputs import CHECKPOINT, Trained, reading, trained
from lipcompile.cli.shared.output import complain, print_found
from lipcompile.cli.shared.progress import CountWatch
from lipcompile.core.backend import Backend, find
from lipcompile.diagnostics import Diagnostic, Severity, input_error
from lipcompile.numbers.rounding import above, finite, upward
from lipcompile.reports.console import BAD, GOOD, printable, styled, table

SCHEMA = "lipcompile.certify/1"
RADII = ("1/255", "2/255", "4/255", "8/255", "16/255")
REPORT = "gradient bounds rest on the same rules: please report it, with the module and the data"


@dataclass(frozen=True, slots=True)
class _Radii:
    """Radii as they were asked for, ascending, and what they are multiplied with to be in the module's units."""

    asked: tuple[tuple[str, Fraction], ...]
    scale: Fraction

    def of_the_module(self) -> list[float]:
        """Return them in the units that the module gets, rounded up."""
        exact = [radius * self.scale for _, radius in self.asked]
        if max(exact) > Fraction(sys.float_info.max):
            raise input_error("LIP005", "--radius: a radius is too large")
        return [above(radius) for radius in exact]


@click.command(short_help="Certified accuracy of a trained MODULE within radii around its inputs.")
@module_argument
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.npz",
    help="Arrays x_test and y_test; or X and y, of which `train` holds out a fifth.",
)
@weights_option
@click.option(
    "--radius",
    "radii",
    multiple=True,
    metavar="R",
    help=f"2-norm of a change of the input, such as 8/255 or 0.5; repeatable. {', '.join(RADII)} by default.",
)
@click.option(
    "--input-scale",
    default="1",
    metavar="S",
    help="FILE.npz holds S times the units of the radii: radii are multiplied by S. 1 by default.",
)
@click.option("--attack/--no-attack", default=True, help="Try to break every certificate; on by default.")
@click.option("--steps", type=click.IntRange(1), help="Steps of each descent; 10 by default.")
@click.option("--restarts", type=click.IntRange(1), help="Descents of an attack from each example; 2 by default.")
@click.option("--seed", type=int, help="Seed of the starts of the attack; 0 by default.")
@format_option()
def certify(
    module: Path,
    data: Path,
    weights: Path | None,
    radii: tuple[str, ...],
    input_scale: str,
    attack: bool,
    form: str,
    **effort: int | None,
) -> int:
    """Measure the certified accuracy of MODULE: examples predicted right under every change within a radius.

    MODULE is the Python file that `compile` or `train` wrote, or the folder of `train`; it is run. Certificates
    follow from its Lipschitz constant at its weights as they are. An attack by projected gradient descent shows
    how many examples withstand it, and must break no certificate: if it does, the exit code is 1.

    Radii are 2-norms, in the units of pixels from 0 to 1 if the data has them. If the data was multiplied by S
    before it was written to FILE.npz, use --input-scale S. Accuracy is not private: it depends on the data on
    which it is measured, so use public data.

    \b
    Examples:
      lipcompile certify run --data data.npz
      lipcompile certify run/model.py --weights run/checkpoint.pt --data data.npz --radius 0.1 --format json
    """

    config = _effort(attack, effort)
    read = {text.strip(): _positive(text, "--radius") for text in radii or RADII}
    asked = _Radii(tuple(sorted(read.items(), key=lambda one: one[1])), _positive(input_scale, "--input-scale"))
    backend = find()
    subject = _trained_model(module, weights, backend)
    found = _certified(subject, data, asked, config, backend)
    shown = subject, data, asked, found, config
    print_found(form, _report(*shown), _text(*shown))
    if not found.sound:
        complain([refutation(found.broken)])
    return 0 if found.sound else 1


def refutation(broken: int) -> Diagnostic:
    """Return what is said of certificates that an attack broke."""
    what = "a certificate is" if broken == 1 else f"{broken} certificates are"
    return Diagnostic("LIP512", f"{what} broken: a wrong input was found within the certified radius", REPORT)


def _effort(attack: bool, given: dict[str, int | None]) -> dict[str, int] | None:
    """Return the settings of the attack, None for no attack; raises InputError (LIP005)."""
    if not attack:
        for name, value in given.items():
            if value is not None:
                raise input_error("LIP005", f"--{name} is an option of the attack, which --no-attack leaves out")
        return None
    defaults = {"steps": 10, "restarts": 2, "seed": 0}
    return {name: default if given[name] is None else int(given[name] or 0) for name, default in defaults.items()}


def _positive(text: str, option: str) -> Fraction:
    """Read a number of an option; raises InputError (LIP005)."""
    from lipcompile.frontends.options import parse_number

    number = parse_number(text, option)
    if not 0 < number <= Fraction(sys.float_info.max):
        raise input_error("LIP005", f"{option}: `{text}` is not a positive number")
    return number


def _trained_model(path: Path, weights: Path | None, backend: Backend) -> Trained:
    """Run the module and load its weights; raises InputError (LIP510, LIP513)."""
    found = trained(path, weights, backend)
    if found.weights is None and (beside := found.source.parent / CHECKPOINT).is_file():
        message = f"the weights are those that the module starts with, not those of `{beside}`"
        complain([Diagnostic("LIP513", message, f"use --weights {beside}", Severity.WARNING)])
    return found


def _certified(
    subject: Trained, data: Path, asked: _Radii, config: dict[str, int] | None, backend: Backend
) -> Any:
    """Return what the backend finds; raises InputError (LIP402, LIP403, LIP511)."""
    certifier = backend.robustness
    try:
        with reading(data):
            inputs, targets = certifier.load_examples(subject.module, data)
        attack = None if config is None else certifier.AttackConfig(**config)
        with CountWatch("attacking") as watch:
            return certifier.certify(subject.module, inputs, targets, asked.of_the_module(), attack, watch)
    except ValueError as error:
        raise input_error("LIP511", str(error)) from None


def _report(
    subject: Trained, data: Path, asked: _Radii, found: Any, config: dict[str, int] | None
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "module": str(subject.source),
        "weights": None if subject.weights is None else str(subject.weights),
        "data": str(data),
        "ok": found.sound,
        "examples": found.examples,
        "accuracy": found.right / found.examples,
        "norm": "l2",
        "input_scale": float(asked.scale),
        "within": finite(subject.module.input_norm) if subject.module.input_trusted else None,
        "lipschitz": _constants(found.constants, subject.module),
        "radii": [
            {
                "radius": label,
                "value": float(radius),
                "module_radius": row.radius,
                "certified_accuracy": row.certified / found.examples,
                "attacked_accuracy": None if row.attacked is None else row.attacked / found.examples,
            }
            for (label, radius), row in zip(asked.asked, found.radii, strict=True)
        ],
        "attack": None if config is None else {**config, "broken": found.broken},
    }


def _constants(found: Any, module: Any) -> dict[str, Any]:
    pairs = None
    if found.pairs is not None:
        apart = found.pairs[~found.pairs.new_ones(len(found.pairs)).diag().bool()]
        pairs = {"smallest": float(apart.min()), "largest": float(apart.max())}
    return {
        "declared": finite(module.lipschitz),
        "logits": found.logits,
        "features": found.features,
        "layer": module.last_dense,
        "pairs": pairs,
    }


def _text(
    subject: Trained, data: Path, asked: _Radii, found: Any, config: dict[str, int] | None
) -> Iterator[RenderableType]:
    yield styled(f"{found.examples} examples of {printable(str(data))}, {_share(found.right, found)} right")
    yield styled(_of_constants(found.constants, subject.module))
    yield styled("")
    yield _table(asked, found)
    yield styled("")
    yield from map(styled, _of_radii(subject.module, asked))
    if config is not None:
        tried = f"{config['restarts']} descents of {config['steps']} steps from each example"
        said = (f"no certificate was broken by {tried}", GOOD) if found.sound else (f"broken: {found.broken}", BAD)
        yield styled(said)
    yield styled("These accuracies are not private: they say something of the examples that they are measured on.")


def _table(asked: _Radii, found: Any) -> RenderableType:
    columns = {"radius": [printable(label) for label, _ in asked.asked]}
    if asked.scale != 1:
        columns["of the module"] = [f"{row.radius:.4g}" for row in found.radii]
    columns["certified"] = [_share(row.certified, found) for row in found.radii]
    if found.radii[0].attacked is not None:
        columns["under attack"] = [_share(row.attacked, found) for row in found.radii]
    rows = table(*columns, right=tuple(columns))
    for cells in zip(*columns.values(), strict=True):
        rows.add_row(*cells)
    return rows


def _of_constants(found: Any, module: Any) -> str:
    from lipcompile.reports.formulas import of_any_weights

    said = f"Lipschitz constant of the logits {upward(found.logits)}; {of_any_weights(module.lipschitz)}"
    pairs = _constants(found, module)["pairs"]
    if pairs is None:
        return said
    return f"{said}; of differences of two logits {upward(pairs['smallest'])} to {upward(pairs['largest'])}"


def _of_radii(module: Any, asked: _Radii) -> Iterator[str]:
    units = "as in the data file" if asked.scale == 1 else f"before it was multiplied by {float(asked.scale):g}"
    yield f"Radii are 2-norms of a change of the input, {units}; bytes count as numbers from 0 to 1."
    if module.input_trusted and math.isfinite(module.input_norm):
        yield f"Only inputs of norm at most {module.input_norm:g} count: the module trusts that it gets no others."


def _share(count: int, found: Any) -> str:
    """Return a percentage, rounded down."""
    return f"{math.floor(1000 * count / found.examples) / 10:.1f} %"
