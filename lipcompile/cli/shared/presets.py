"""Presets: from public facts about a file of images to a model with its plan, as `.lip` text.

Facts are the shape of the images, how many there are to train on, and the number of classes, which the test part
says. Settings were chosen on parts of MNIST, Fashion-MNIST and CIFAR-10, as docs/utility-images.md has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, isqrt, log2, log10, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lipcompile.cli.shared.inputs import reading
from lipcompile.cli.shared.output import write_text
from lipcompile.cli.shared.settings import setting_error
from lipcompile.core.backend import Backend, find
from lipcompile.diagnostics import input_error
from lipcompile.ops.scattering.rules import Scattering2d

if TYPE_CHECKING:
    from lipcompile.core.record import Shape

MODEL = "model.lip"
ENDING = ".npz"

_SMALLEST, _LARGEST = 8, 128
_GRID = 7  # positions along a side of the coefficients, about
_BATCH = 8192
# Shares of the examples that a batch lies between: the larger ones cost a tenth more noise than all would.
_LEAST_SHARE, _MOST_SHARE = Fraction(1, 100), Fraction(1, 6)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is public about a file of images: their shape [C, H, W], examples to train on, classes."""

    shape: Shape
    examples: int
    classes: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was tuned: of the whitening, and of the training.

    Args:
        layer: of the features. Natural images keep their classes when they are mirrored, digits do not.
        steps: of the optimizer, about: there are whole epochs.
        remark: line above the layer.
    """

    layer: str
    source: str
    channels: int
    power: str
    optimizer: str
    steps: int
    average: str
    remark: str = ""


_MIRRORED = "        # Write whitened_scattering2d if a class changes when images are mirrored.\n"
# By the number of channels: tuned on 28 by 28 grey and 32 by 32 coloured pixels.
_RECIPES: Mapping[int, Recipe] = {
    1: Recipe("whitened_scattering2d", "strokes", 81, "0.4", "adam(lr=0.015)", 105, "0.25"),
    3: Recipe("mirrored_scattering2d", "leaves", 96, "0.3", "sgd(lr=20, momentum=0.9)", 120, "0.5", _MIRRORED),
}


def begun(path: Path, output: Path, given: Mapping[str, Any], shapes: Mapping[str, Shape]) -> tuple[str, Path]:
    """Write the preset's model into the folder of a run; return it and the data, as `train` takes them.

    Raises InputError (LIP005, LIP402, LIP403, LIP404, LIP405).
    """
    text = preset_text(path, given["epsilon"], given["delta"], shapes)
    model = output / MODEL
    if model.exists() and model.read_text(encoding="utf-8") != text:
        help_line = "give the options that it was begun with, or choose another --output"
        raise input_error("LIP405", f"`{model}` is another model than the one that this preset makes", help_line)
    output.mkdir(parents=True, exist_ok=True)
    write_text(model, text)
    click.echo(f"wrote {model}: `lipcompile train {model} --data {path}` trains it as well", err=True)
    return str(model), path


def preset_text(
    path: Path, epsilon: float | None, delta: float | None, shapes: Mapping[str, Shape] | None = None
) -> str:
    """Return the model and the plan for a file of data, or a folder and the shape of each image in it.

    Raises InputError, as `begun`.
    """
    if path.suffix != ENDING and not path.is_dir():
        message = f"the preset takes arrays of images, and `{path}` is neither a folder nor an {ENDING} file"
        raise input_error("LIP402", message, "give FILE.npz, or a folder with a folder of images for each class")
    if shapes and (not path.is_dir() or {*shapes} != {""}):
        message = f"--input-shape: each image of a folder gets this shape, and `{path}` is none"
        raise input_error("LIP005", message, "leave it out")
    if epsilon is None:
        raise setting_error("--epsilon is needed")
    facts = facts_of(path, find(), (shapes or {}).get("", ()))
    return text_of(facts, epsilon, public_delta(facts.examples) if delta is None else delta)


def facts_of(path: Path, backend: Backend, wanted: Shape = ()) -> Facts:
    """Return what is public about images in a file, or in a folder; raises InputError (LIP402, LIP403)."""
    with reading(path):
        shape, examples, labels = backend.data.public_facts(path, wanted)
    if len(shape) == 3 and shape[0] not in _RECIPES and shape[-1] in _RECIPES:
        shape = (shape[-1], *shape[:-1])
    shape = (1, *shape) if len(shape) == 2 else shape
    if len(shape) != 3 or shape[0] not in _RECIPES:
        message = f"examples of shape {list(shape)} are no images of 1 or 3 channels"
        raise input_error("LIP403", message, "store them as [N, height, width], or [N, height, width, 3]")
    if not _SMALLEST <= min(shape[1:]) <= max(shape[1:]) <= _LARGEST:
        message = f"the preset takes images from {_SMALLEST} to {_LARGEST} pixels a side, not {list(shape[1:])}"
        help_line = "resize them, each by itself, before they are stored; of a folder, give --input-shape 3,32,32"
        raise input_error("LIP403", message, help_line)
    if labels is None or labels.min() < 0 or labels.max() < 1:
        raise input_error("LIP403", "the labels of the test part are no class numbers from 0 on, two at least")
    return Facts(shape, examples, int(labels.max()) + 1)


def public_delta(examples: int) -> float:
    """Return the default of δ: the largest power of ten that is at most 1 / (1.1·N)."""
    return float(f"1e{floor(-log10(1.1 * examples))}")


def text_of(facts: Facts, epsilon: float, delta: float) -> str:
    """Return the .lip text: a frozen map to features, and a linear head that is trained."""
    recipe = _RECIPES[facts.shape[0]]
    scales = _scales(facts.shape)
    channels = min(recipe.channels, facts.shape[0] * Scattering2d(scales).coefficients)
    radius = isqrt(prod(facts.shape) - 1) + 1
    batch = max(min(_BATCH, ceil(_MOST_SHARE * facts.examples)), ceil(_LEAST_SHARE * facts.examples))
    per_epoch = max(1, round(facts.examples / batch))
    epochs = max(1, round(recipe.steps / per_epoch))
    return f"""# Written by the preset images: features of each image that are fixed in public, and a linear head.
model images {{
    input image: tensor{list(facts.shape)}, norm <= {radius}
    frozen {{
{recipe.remark}        {recipe.layer}({channels}, source={recipe.source}, scales={scales}, power={recipe.power})
        flatten
    }}
    dense({facts.classes}, constraint=frobenius(100000), start=zero)  # the bound rests on what enters
    clip_gradient(0.1)
    loss cross_entropy(temperature=30)
}}

train {{
    neighbours  add_remove
    sampling    poisson(batch={batch}, dataset={facts.examples})
    noise       global
    budget      epsilon={_number(epsilon)}, delta={_number(delta)}, epochs={epochs}
    optimizer   {recipe.optimizer}
    schedule    linear, average={recipe.average}
}}
"""


def _scales(shape: Shape) -> int:
    """Return J, such that about 7 positions are left along the shorter side."""
    return max(1, round(log2(min(shape[1:]) / _GRID)))


def _number(value: float) -> str:
    return f"{value:.12g}"
