"""What every command takes that reads a model: MODEL and the options that override what the file says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.diagnostics import input_error

if TYPE_CHECKING:
    from lipcompile.frontends.options import ModelOptions

Command = Callable[..., int]

_OPTIONS = (
    click.option("--input-norm", metavar="X0", help="Bound of the input norm; examples are clipped to it."),
    click.option("--loss", metavar="NAME[:arg=value,…]", help="Loss, such as cross_entropy:temperature=10."),
    click.option(
        "--constraint",
        metavar="KIND",
        help="Constraint of every weight: spectral:1.0, orthogonal, frobenius:2.0, or keep (imported norms).",
    ),
    click.option("--bias-bound", metavar="B", help="Bound of the norm of every bias."),
    click.option(
        "--bounds",
        type=click.Choice(["theorem", "clip", "auto"]),
        help="Source of gradient bounds: theorem, a clip in the backward pass, or auto: theorems if they are "
        "tight, and otherwise a clip. The default is theorem; that of compile, train and audit for a torch module "
        "without --input-norm is auto.",
    ),
    click.option(
        "--clip-groups",
        type=click.Choice(["flat", "layers", "blocks"]),
        help="Parameters that one clip bounds: all parameters (the default), those of a layer, or of a block.",
    ),
    click.option(
        "--clip-length", metavar="C", help="Length that gradients are clipped to, or automatic (the default)."
    ),
    click.option("--freeze", multiple=True, metavar="GLOB", help="Do not train matching parameters; repeatable."),
    click.option(
        "--set", "bindings", multiple=True, metavar="NAME=VALUE", help="Value of a .lip parameter; repeatable."
    ),
    click.option(
        "--input-shape",
        multiple=True,
        metavar="[NAME=]N,…",
        help="Shape of one example, such as 3,32,32; needed for a torch module, and for an open .onnx file.",
    ),
    click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="NAME=SIZE",
        help="Change a limit on the size of inputs, such as nodes=50000 (explain LIP018); repeatable.",
    ),
)

_NAMES = (
    *("input_norm", "loss", "constraint", "bias_bound", "bounds", "clip_groups", "clip_length"),
    *("freeze", "bindings", "input_shape", "limits"),
)

# A file or a folder.
PATH = click.Path(path_type=Path)


def path_option(name: str, metavar: str, text: str) -> Callable[[Command], Command]:
    """Give a command the keyword that `name` is: a file or a folder, None by default."""
    return click.option(*_flags(name), type=PATH, metavar=metavar, help=text)


def _flags(name: str) -> tuple[str, ...]:
    return ("-o", name) if name == "--output" else (name,)


# What commands take that need a trained module.
module_argument = click.argument("module", type=PATH)
weights_option = path_option(
    "--weights",
    "FILE",
    "Checkpoint of `train`, or a state dict of torch.save; the checkpoint.pt of a folder by default.",
)


def model_options(*, required: bool = True, several: bool = False) -> Callable[[Command], Command]:
    """Give a command `model` (`models` if `several`) and, collected in one `ModelOptions`, `options`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def collected(**given: Any) -> int:
            options = _collect({name: given.pop(name) for name in _NAMES})
            with options.limits.in_force():
                return command(options=options, **given)

        for option in reversed(_OPTIONS):
            collected = option(collected)
        if several:
            return click.argument("models", metavar="MODEL...", nargs=-1, required=required)(collected)
        return click.argument("model", required=required)(collected)

    return decorate


def file_option(name: str, *, metavar: str, text: str, required: bool = False) -> Callable[[Command], Command]:
    """Give a command the keyword that `name` is: a file, whose suffixes `metavar` shows."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(*_flags(name), type=path, required=required, metavar=metavar, help=text)


def output_option(metavar: str, text: str, *, required: bool = True) -> Callable[[Command], Command]:
    """Give a command the keyword `output`: the file to write."""
    return file_option("--output", metavar=metavar, text=text, required=required)


vacuous_option = click.option(
    "--allow-vacuous", is_flag=True, help="Accept a bound that is far above the gradients that occur."
)


public_option = file_option(
    "--public-data",
    metavar="FILE.npz",
    text="Measure gradients of these examples, on which nobody's privacy depends, instead of random ones.",
)


NEIGHBOURS = click.Choice(["add_remove", "replace_one"])
NEIGHBOURS_HELP = "Neighbouring relation: one example more or less, or one replaced."
neighbours_option = click.option("--neighbours", type=NEIGHBOURS, help=NEIGHBOURS_HELP)
noise_option = click.option(
    "--noise",
    type=click.Choice(["global", "per_layer", "optimal"]),
    help="Division of the noise among the parameters.",
)


tokenizer_option = click.option(
    "--tokenizer",
    metavar="FILE",
    help="Public tokenizer.json, or its folder, for columns of free text; without it they are ignored.",
)


def table_options(command: Command) -> Command:
    """Add what commands ask about a table to learn from: `target`, `schema`, `tokenizer`, `test`."""
    options = (
        click.option("--target", metavar="COLUMN", help="Column of the table to predict."),
        path_option(
            "--schema", "FILE", "Schema of the table, as `lipcompile new` writes it; DATA.schema.toml by default."
        ),
        tokenizer_option,
        path_option("--test", "FILE", "Table of test rows; by default a fifth of the table is held out."),
    )
    return functools.reduce(lambda made, option: option(made), reversed(options), command)


def format_option(text: str = "Format of the output.") -> Callable[[Command], Command]:
    """Give a command the keyword `form`: "text" or "json"."""
    return click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help=text)


def verify_option(*, default: bool) -> Callable[[Command], Command]:
    """Give a command the keyword `verify_import`: whether an import is compared with its original."""
    return click.option(
        "--verify-import/--no-verify-import",
        default=default,
        show_default=True,
        help="Run an imported model beside its original, on random inputs, and compare.",
    )


def _collect(given: Mapping[str, Any]) -> ModelOptions:
    """Read the options of a model from the texts of the command line; raises InputError (LIP005)."""
    from lipcompile.frontends.options import ModelOptions, parse_constraint, parse_length, parse_number
    from lipcompile.limits import parse_limits

    readers: Mapping[str, Callable[[Any], Any]] = {
        "input_norm": lambda text: parse_number(text, "--input-norm"),
        "constraint": parse_constraint,
        "bias_bound": lambda text: parse_number(text, "--bias-bound"),
        "clip_length": parse_length,
        "bindings": _bindings,
        "input_shape": shapes,
        "limits": parse_limits,
    }
    return ModelOptions(
        **{
            name: readers[name](value) if name in readers and value is not None else value
            for name, value in given.items()
        }
    )


def _bindings(texts: tuple[str, ...]) -> dict[str, Any]:
    from lipcompile.frontends.options import parse_number

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise input_error("LIP005", f"--set: `{text}` is not name=value", "for example --set depth=12")
        if name.strip() in found:
            raise input_error("LIP005", f"--set: `{name.strip()}` is given twice")
        found[name.strip()] = parse_number(value.strip(), f"--set {name.strip()}")
    return found


def shapes(texts: tuple[str, ...]) -> dict[str, Any]:
    """Read the shapes of inputs by their names; raises InputError (LIP005)."""
    from lipcompile.frontends.options import parse_shape

    found: dict[str, Any] = {}
    for name, shape in map(parse_shape, texts):
        if name in found or ("" in found and name) or (found and not name):
            help_line = "name each of several inputs: --input-shape image=3,32,32 --input-shape mask=32,32"
            raise input_error(
                "LIP005", "--input-shape: which shape belongs to which input is not clear", help_line
            )
        found[name] = shape
    return found
