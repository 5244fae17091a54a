"""`lipcompile fix`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lipcompile.cli.shared.arguments import model_options, output_option
from lipcompile.cli.shared.output import complain, refuse_source
from lipcompile.numbers.rounding import upward

if TYPE_CHECKING:
    from lipcompile.fixing import Outcome
    from lipcompile.frontends.options import ModelOptions

_KINDS = click.Choice(["softmax", "norm", "residual", "attention", "pool", "groupsort"])


@click.command(short_help="Rewrite MODEL until its gradient has a useful bound.")
@model_options()
@output_option("FILE.{lip,onnx}", "File to write; it is kept only if it passes `check`.")
@click.option(
    "--batch-norm",
    type=click.Choice(["group_norm", "center", "fold"]),
    default="group_norm",
    show_default=True,
    help="Replacement of batch norm: a norm of one example, its centring, or the stored statistics.",
)
@click.option(
    "--floor",
    default="1",
    show_default=True,
    metavar="α",
    help="Least divisor of a norm, whose slope is then at most 1/α.",
)
@click.option("--target", metavar="K", help="Largest bound to accept; by default the largest useful one.")
@click.option("--also", multiple=True, type=_KINDS, help="Make this change in any case; repeatable.")
@click.option("--never", multiple=True, type=_KINDS, help="Do not make this change; repeatable.")
def fix(
    model: str,
    options: ModelOptions,
    output: Path,
    batch_norm: str,
    floor: str,
    target: str | None,
    also: tuple[str, ...],
    never: tuple[str, ...],
) -> int:
    """Replace the layers of MODEL that prevent a useful bound by the nearest layers with one.

    Batch normalisation is always replaced. A last softmax is removed if the loss contains one. A bound is too
    large to be useful if it is above 10^6 times L·max(1, X_0), or far above the gradients of random examples.
    While it is, norms get a floor, sums of branches become means, and tokens of attention get a bounded length, in
    this order. With --target, all kinds of changes are made while the bound is above K. The output lists each
    change with its effect on the bound, and the changes that were not needed. The exit code is 0 if the bound of
    the written file is useful, or at most K. It is 1 otherwise, and if an error remains that no change fixes.

    \b
    Examples:
      lipcompile fix model.onnx --input-norm 1.0 --loss cross_entropy -o fixed.onnx
      lipcompile fix model.lip -o fixed.lip --also groupsort
      lipcompile fix model.lip -o fixed.lip --target 10
    """
    from lipcompile.cli.shared.signals import aim
    from lipcompile.fixing import FixOptions
    from lipcompile.fixing import fix as fixed
    from lipcompile.frontends.options import parse_number
    from lipcompile.frontends.repairs import Repairs

    refuse_source(model, output)
    least = parse_number(floor, "--floor")
    if least <= 0:
        raise click.UsageError("--floor must be positive")
    highest = None if target is None else float(parse_number(target, "--target"))
    if highest is not None and highest <= 0:
        raise click.UsageError("--target must be positive")
    repairs = Repairs(batch_norm, least)  # type: ignore[arg-type]
    outcome = fixed(model, options, FixOptions(repairs, also, never, aim(highest)), output)
    return _tell(outcome, output)


def _tell(outcome: Outcome, output: Path) -> int:
    from lipcompile.reports.fixes import fixes

    complain([found for found in outcome.diagnostics if found.severity == "error"])
    for line in fixes(outcome):
        click.echo(line)
    if outcome.check is not None and not outcome.check.ok:
        complain([found for found in outcome.check.diagnostics if found.severity == "error"])
    if outcome.ok:
        click.echo(_summary(outcome, output), err=True)
    return 0 if outcome.reached else 1


def _summary(outcome: Outcome, output: Path) -> str:
    assert outcome.check is not None
    assert outcome.check.analysis is not None
    total = outcome.check.analysis.total.value
    bound = "its bound is a formula" if total is None else f"gradient of one example at most {upward(total)}"
    return f"wrote {output}: {'it passes check, ' if outcome.reached else ''}{bound}"
