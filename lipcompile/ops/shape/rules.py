"""Ops that move entries about, cut some off, or clip the whole. Proofs: shape.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod

from lipcompile.core.record import AnyOp, Inputs, NoAttributes, Shape, Site, Theta
from lipcompile.diagnostics import Refusal
from lipcompile.numbers import N, Numbers, Scalar
from lipcompile.ops.rules import entry_of_input, homogeneous, plain, row_of_input, same_shape
from lipcompile.ops.schema import Index


@dataclass(frozen=True, slots=True)
class Reshape:
    """The new shape of the example; one entry may be -1."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transpose:
    """A permutation of the example's axes; the empty one swaps the last two."""

    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Blocks of `size` by `size` entries of an image [channels, height, width]."""

    size: int


@dataclass(frozen=True, slots=True)
class Slice:
    """The entries start <= i < stop along `axis`."""

    axis: Index
    start: Index
    stop: int


@dataclass(frozen=True, slots=True)
class ClipNorm:
    """Projection of the example onto the ball of this radius."""

    radius: Scalar


@dataclass(frozen=True, slots=True)
class ClipGradient:
    """Identity forward; backward, each example's cotangent is clipped to this norm."""

    bound: Scalar


@dataclass(frozen=True, slots=True)
class Dropout:
    """Zeroes entries with probability `probability` and divides the rest by 1 - probability."""

    probability: Scalar = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class GroupedDropout(Dropout):
    """As `Dropout`, but entries of an example that agree in their first `axes` indices share their fate.

    0 axes drop the whole example, as random depth does, 1 axis drops channels.
    """

    axes: Index = 0


def flatten_shape(attributes: NoAttributes, inputs: tuple[Shape, ...]) -> Shape:
    """[...] -> [entries]."""
    return (prod(inputs[0]),)


def reshape_shape(attributes: Reshape, inputs: tuple[Shape, ...]) -> Shape:
    """The given shape, with -1 filled in."""
    entries, known = prod(inputs[0]), prod(size for size in attributes.shape if size != -1)
    open_axes = attributes.shape.count(-1)
    fits = open_axes <= 1 and known > 0 and (entries % known == 0 if open_axes else entries == known)
    if not fits or any(size < 1 and size != -1 for size in attributes.shape):
        raise Refusal("LIP102", f"an example of {entries} entries does not fit the shape {list(attributes.shape)}")
    return tuple(entries // known if size == -1 else size for size in attributes.shape)


def transpose_shape(attributes: Transpose, inputs: tuple[Shape, ...]) -> Shape:
    """The permuted shape."""
    return tuple(inputs[0][axis] for axis in permutation(attributes, inputs[0]))


def permutation(attributes: Transpose, example: Shape) -> tuple[int, ...]:
    """Return the permutation of the example's axes; raises `Refusal` if it is none."""
    rank = len(example)
    if not attributes.axes:
        if rank < 2:
            raise Refusal("LIP102", f"there is nothing to transpose in an example of shape {list(example)}")
        return (*range(rank - 2), rank - 1, rank - 2)
    if sorted(attributes.axes) != list(range(rank)):
        raise Refusal(
            "LIP102",
            f"{attributes.axes} is not a permutation of the axes 0..{rank - 1} of {list(example)}",
            "count axes within one example, without the batch axis",
        )
    return attributes.axes


def space_to_depth_shape(block: Block, inputs: tuple[Shape, ...]) -> Shape:
    """[c, h, w] -> [c·r², h/r, w/r]."""
    channels, height, width = _image(inputs[0])
    r = block.size
    if height % r or width % r:
        raise Refusal("LIP102", f"blocks of size {r} do not tile an image of {height} by {width}")
    return (channels * r * r, height // r, width // r)


def depth_to_space_shape(block: Block, inputs: tuple[Shape, ...]) -> Shape:
    """[c·r², h, w] -> [c, h·r, w·r]."""
    channels, height, width = _image(inputs[0])
    r = block.size
    if channels % (r * r):
        raise Refusal("LIP102", f"{channels} channels are not a multiple of {r * r}")
    return (channels // (r * r), height * r, width * r)


def patches_shape(block: Block, inputs: tuple[Shape, ...]) -> Shape:
    """[c, h, w] -> [patches, c·k²]."""
    channels, height, width = space_to_depth_shape(block, inputs)
    return (height * width, channels)


def slice_shape(attributes: Slice, inputs: tuple[Shape, ...]) -> Shape:
    """The shape with `stop - start` entries along the axis."""
    example, axis = inputs[0], attributes.axis
    if not 0 <= axis < len(example) or not 0 <= attributes.start < attributes.stop <= example[axis]:
        raise Refusal(
            "LIP102",
            f"entries {attributes.start}..{attributes.stop} of axis {axis} do not exist in shape {list(example)}",
        )
    return (*example[:axis], attributes.stop - attributes.start, *example[axis + 1 :])


def _image(example: Shape) -> tuple[int, int, int]:
    if len(example) != 3:
        raise Refusal("LIP102", f"this op needs an image [channels, height, width], not {list(example)}")
    return (example[0], example[1], example[2])


def positive_radius(attributes: ClipNorm, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape; the radius must be positive."""
    return _positive(attributes.radius, "the radius of clip_norm", inputs)


def positive_bound(attributes: ClipGradient, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape; the bound must be positive."""
    return _positive(attributes.bound, "the bound of clip_gradient", inputs)


def _positive(value: Scalar, what: str, inputs: tuple[Shape, ...]) -> Shape:
    if isinstance(value, Fraction) and value <= 0:
        raise Refusal("LIP104", f"{what} must be positive")
    return inputs[0]


def dropout_shape(attributes: Dropout, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape; the probability must lie in [0, 1)."""
    probability = attributes.probability
    if not isinstance(probability, Fraction) or not 0 <= probability < 1:
        raise Refusal("LIP104", "a dropout probability must be at least 0 and below 1")
    return inputs[0]


def drops(attributes: Dropout) -> bool:
    """Whether an entry can become 0."""
    return attributes.probability != 0


def grouped_dropout_shape(attributes: GroupedDropout, inputs: tuple[Shape, ...]) -> Shape:
    """The input's shape; the axes are some of its own."""
    if not 0 <= attributes.axes <= len(inputs[0]):
        message = f"`axes` must lie between 0 and the {len(inputs[0])} axes of the example"
        raise Refusal("LIP104", f"{message}, but is {attributes.axes}")
    return dropout_shape(attributes, inputs)


def clip_norm(num: Numbers[N], site: Site[ClipNorm], x: Inputs[N], theta: Theta[N]) -> N:
    """X_out = min(X, R)."""
    return num.minimum(x[0].norm, num.of(site.attributes.radius))


def clip_cotangent(num: Numbers[N], site: Site[ClipGradient], cotangent: N, lipschitz: Sequence[N]) -> Sequence[N]:
    """G_in = min(G_out, C)."""
    return [num.minimum(cotangent, num.of(site.attributes.bound))]


def dropout_gain(num: Numbers[N], site: Site[Dropout]) -> N:
    """1/(1-p)."""
    return 1 / (1 - num.of(site.attributes.probability))


def clipped_row(num: Numbers[N], site: Site[ClipNorm], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = min(R, radius): the map shrinks the whole."""
    return num.minimum(x[0].row, num.of(site.attributes.radius))


def transposed_row(num: Numbers[N], site: Site[Transpose], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = R if the last axis stays the last, else X."""
    axes = permutation(site.attributes, site.inputs[0])
    return x[0].row if axes[-1] == len(axes) - 1 else x[0].norm


def reshaped_row(num: Numbers[N], site: Site[Reshape], x: Inputs[N], theta: Theta[N]) -> N:
    """R_out = R if rows stay whole or are cut evenly, √c·R if c of them are put end to end, else X."""
    before, after = prod(site.inputs[0][-1:]), prod(site.output[-1:])
    if before % after and after % before:
        return x[0].norm
    return num.sqrt(max(after // before, 1)) * x[0].row


MOVES = "shape.md#rearrangements"
CUTS = "shape.md#slices"

dropping = partial(homogeneous, proof="shape.md#dropout", gain=dropout_gain, also=("row", "entry"), draws=drops)

OPS: tuple[AnyOp, ...] = (
    plain("identity", NoAttributes, same_shape, MOVES, row=row_of_input, entry=entry_of_input),
    plain("flatten", NoAttributes, flatten_shape, MOVES, takes="any", entry=entry_of_input, axes="placed"),
    plain(
        "reshape",
        Reshape,
        reshape_shape,
        MOVES,
        takes="any",
        row=reshaped_row,
        entry=entry_of_input,
        axes="placed",
    ),
    plain("transpose", Transpose, transpose_shape, MOVES, row=transposed_row, entry=entry_of_input, axes="placed"),
    plain("space_to_depth", Block, space_to_depth_shape, MOVES, entry=entry_of_input, axes="channels"),
    plain("depth_to_space", Block, depth_to_space_shape, MOVES, entry=entry_of_input, axes="channels"),
    plain("patches", Block, patches_shape, MOVES, entry=entry_of_input, axes="placed"),
    plain("slice", Slice, slice_shape, CUTS, takes="any", row=row_of_input, entry=entry_of_input),
    plain(
        "clip_norm",
        ClipNorm,
        positive_radius,
        "shape.md#clip-norm",
        norm=clip_norm,
        row=clipped_row,
        entry=entry_of_input,
    ),
    plain(
        "clip_gradient",
        ClipGradient,
        positive_bound,
        "shape.md#clip-gradient",
        row=row_of_input,
        entry=entry_of_input,
        cotangent=clip_cotangent,
    ),
    dropping("dropout", Dropout, dropout_shape),
    dropping("grouped_dropout", GroupedDropout, grouped_dropout_shape),
)
