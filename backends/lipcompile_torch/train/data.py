"""Data files: arrays in `.npz`, or folders of images, checked before anything is trained on them."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lipcompile_privacy.errors import DataError as DataError
from numpy.typing import NDArray

from .. import sources
from ..noise.masks import seed_secretly

Parts = Sequence[tuple[str, tuple[int, ...]]]
Given = NDArray[Any] | Mapping[str, NDArray[Any]]

_SPLIT_SEED = 0
_TEST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Arrays:
    """Examples to train on, privately, and held-out examples to test on, whose accuracy is published exactly.

    Args:
        x_train: float32 [N, *input_shape]; int64 for tokens.
        y_train: int64 [N] class numbers, or float32 [N, …] targets.
        x_test: as x_train, [M, *input_shape].
        y_test: as y_train, [M, …].
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]


def load_npz(
    path: str | os.PathLike[str],
    input_shape: tuple[int, ...],
    classes: int | None = None,
    tokens: int | Sequence[int] | None = None,
    parts: Parts = (),
) -> Arrays:
    """Read arrays x_train, y_train, x_test, y_test; or X, y (or x, y), split 80:20 by a fixed permutation.

    Images of type uint8 become float32 in [0, 1]; shapes that differ from `input_shape` by a missing or last
    channel axis, or by flattening, are rearranged. Images in files get the size and the colours that the shape
    says.

    Args:
        path: a file that `numpy.savez` wrote, or a folder of images, see `sources.images_in`.
        input_shape: shape of one example, as the network declares it.
        classes: labels must be integers below this number; None: labels are not checked against a range.
        tokens: inputs are whole numbers below this number, or each entry below its own, and stay as they are;
            None: inputs are numbers.
        parts: name and shape of each of several inputs. The file may have them one by one instead of x, as
            NAME_train and NAME_test, or NAME beside y.

    Raises:
        DataError: the file is not an .npz file, or its arrays do not fit; one line with the fix.
        OSError: it cannot be read.
    """
    return from_arrays(_read(path, input_shape), input_shape, classes, tokens, parts)


def load_test_npz(
    path: str | os.PathLike[str], input_shape: tuple[int, ...], classes: int | None = None, parts: Parts = ()
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read what `load_npz` calls the test part, from files that hold no other, too; returns inputs and labels.

    Raises:
        DataError, OSError: as `load_npz`.
    """
    arrays = _joined(_read(path, input_shape), parts, whole=False)
    if {"x_test", "y_test"} <= arrays.keys():
        x, y = arrays["x_test"], arrays["y_test"]
    else:
        x, y = _split_in_two(arrays)[2:]
    return _inputs(x, input_shape, None, "test inputs"), _targets(y, len(x), classes, "test labels")


def load_inputs(
    path: str | os.PathLike[str],
    input_shape: tuple[int, ...],
    tokens: int | Sequence[int] | None = None,
    parts: Parts = (),
) -> tuple[list[str], NDArray[Any]]:
    """Read examples without labels; returns their names, which are paths of images or row numbers, and inputs.

    Args:
        path: of an image, of a folder with images at any depth, or of an .npz file with an array x or X (or
            x_test; or one array alone), or with the inputs by name.
        input_shape, tokens, parts: as of `load_npz`.

    Raises:
        DataError, OSError: as `load_npz`.
    """
    if Path(path).is_dir() or Path(path).suffix != ".npz":
        names, images = sources.images_below(path, *_pixels(input_shape))
        return names, _inputs(images, input_shape, tokens, "images")
    arrays = _joined(_read(path, input_shape), parts, whole=tokens is not None)
    named = next((name for name in ("x", "X", "x_test") if name in arrays), None)
    if named is None and len(arrays) != 1:
        raise DataError(f"the file has arrays {', '.join(sorted(arrays)) or '(none)'}: name that of the inputs x")
    x = _inputs(arrays[named] if named else next(iter(arrays.values())), input_shape, tokens, "inputs")
    return [str(row) for row in range(len(x))], x


def class_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the classes of a folder of images, in the order of their numbers; of arrays none."""
    return sources.class_names(path) if Path(path).is_dir() else []


def items_of(dataset: Any, seeded: bool = False) -> tuple[Given, NDArray[Any]]:
    """Return inputs and labels as `sources.items_of` does, augmented from secret seeds.

    Args:
        dataset: see there.
        seeded: the run is repeatable, and not private: seeds stay as they are.
    """
    if not seeded:
        seed_secretly()
    return sources.items_of(dataset)


def public_facts(
    path: str | os.PathLike[str], input_shape: tuple[int, ...] = ()
) -> tuple[tuple[int, ...], int, NDArray[Any] | None]:
    """Return the shape of one example, how many there are to train on, and the labels of the test part.

    Labels are None unless they are whole numbers, one each. Of the training part nothing but its size is read.
    Images in files get the size and the colours that `input_shape` says.

    Raises:
        DataError, OSError: as `load_npz`.
    """
    x_train, _, x_test, y_test = _split_in_two(_read(path, input_shape))
    if x_train.ndim < 2 or len(x_train) == 0 or y_test.shape != (len(x_test),) or not len(y_test):
        raise DataError(f"inputs of shape {x_train.shape} and test labels of shape {y_test.shape} do not fit")
    return x_train.shape[1:], len(x_train), y_test if y_test.dtype.kind in "iu" else None


def _read(path: str | os.PathLike[str], shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    if Path(path).is_dir():
        return sources.images_in(path, *_pixels(shape))
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, zipfile.BadZipFile, EOFError, AttributeError, TypeError) as error:
        raise DataError(
            f"{os.fspath(path)} is not an .npz file of plain arrays: write it with numpy.savez"
        ) from error


def _pixels(shape: tuple[int, ...]) -> tuple[bool | None, tuple[int, int] | None]:
    """Return whether images of this shape are coloured, and their height and width; None if it does not say."""
    if len(shape) == 2:
        return False, (shape[0], shape[1])
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[0] == 3, (shape[1], shape[2])
    if len(shape) == 3 and shape[2] in (1, 3):
        return shape[2] == 3, (shape[0], shape[1])
    return None, None


def from_arrays(
    arrays: Mapping[str, Given],
    input_shape: tuple[int, ...],
    classes: int | None = None,
    tokens: int | Sequence[int] | None = None,
    parts: Parts = (),
) -> Arrays:
    """Check and convert named arrays, of which inputs may be mappings by the names of `parts`; see `load_npz`."""
    x_train, y_train, x_test, y_test = _split_in_two(_joined(arrays, parts, whole=tokens is not None))
    return Arrays(
        _inputs(x_train, input_shape, tokens, "training inputs"),
        _targets(y_train, len(x_train), classes, "training labels"),
        _inputs(x_test, input_shape, tokens, "test inputs"),
        _targets(y_test, len(x_test), classes, "test labels"),
    )


def _joined(arrays: Mapping[str, Given], parts: Parts, *, whole: bool) -> dict[str, NDArray[Any]]:
    """Return the arrays with one input where several are given, in a mapping or by names of their own."""
    found: dict[str, Any] = dict(arrays)
    for name, suffix in (("x_train", "_train"), ("x_test", "_test"), ("x", "")):
        own, given = {part: f"{part}{suffix}" for part, _ in parts}, arrays.get(name)
        if isinstance(given, Mapping):
            found[name] = _one_input(given, parts, whole=whole)
            continue
        # An input may be called x; it has fewer entries than all together.
        is_free = given is None or any(f"{part}{suffix}" == name and given.shape[1:] == s for part, s in parts)
        if own and {*own.values()} <= arrays.keys() and is_free:
            if "y" in own:
                raise DataError(
                    f"y{suffix} has two meanings, an input and the labels: give x{suffix}, with the entries of "
                    f"all inputs, {', '.join(own)}, one after another"
                )
            named = {part: found.pop(key) for part, key in own.items()}
            found[name] = _one_input(named, parts, whole=whole)
    return found


def _one_input(given: Mapping[str, NDArray[Any]], parts: Parts, *, whole: bool) -> NDArray[Any]:
    """Return [N, n] of several inputs [N, *shape], in the order of `parts`; of a single one, itself."""
    if not parts and len(given) == 1:
        return next(iter(given.values()))
    if {*given} != {name for name, _ in parts}:
        taken = (
            f"the inputs are {', '.join(name for name, _ in parts)}" if parts else "the network takes one input"
        )
        raise DataError(f"{taken}, but {', '.join(given) or 'none'} are given")
    rows = []
    for part, shape in parts:
        array = given[part]
        if array.ndim == 0 or array.shape[1:] != shape:
            raise DataError(f"{part} has shape {array.shape}, but must be ({', '.join(map(str, ('N', *shape)))})")
        array, what = array.reshape(len(array), math.prod(shape)), f"entries of {part}"
        array = array.astype(np.uint8) if whole and array.dtype == bool else array
        rows.append(_whole(array, what) if whole else _numbers(array, what))
        if array.dtype.kind in "iu" and array.dtype != np.uint8 and (rows[-1] != array).any():
            raise DataError(
                f"the {what} are whole numbers that float32 rounds, to another category if they are some"
            )
    if len({len(row) for row in rows}) > 1:
        raise DataError(f"{', '.join(given)} have different numbers of examples")
    return np.concatenate(rows, axis=1)


def _split_in_two(arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    split = ("x_train", "y_train", "x_test", "y_test")
    if all(name in arrays for name in split):
        return tuple(arrays[name] for name in split)
    for x, y in (("X", "y"), ("x", "y")):
        if x in arrays and y in arrays:
            return _split(arrays[x], arrays[y])
    raise DataError(
        f"the file has arrays {', '.join(sorted(arrays)) or '(none)'}: it needs {', '.join(split)}; or X and y"
    )


def _split(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) < 2:
        raise DataError(
            f"X has shape {x.shape} and y {y.shape}: both need the same number of examples, at least 2"
        )
    train, test = split_rows(len(x))
    return x[train], y[train], x[test], y[test]


def split_rows(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of `count` rows to train on, and which to hold out, 80:20: the same ones each time."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(count)
    held_out = max(1, round(_TEST_SHARE * count))
    return order[held_out:], order[:held_out]


def _inputs(
    x: NDArray[Any], shape: tuple[int, ...], tokens: int | Sequence[int] | None, what: str
) -> NDArray[Any]:
    if x.ndim == 0 or len(x) == 0:
        raise DataError(f"there are no {what}: the array has shape {x.shape}")
    numbers = _arranged(_numbers(x, what) if tokens is None else _whole(x, what), shape, what)
    if tokens is not None:
        _check_tokens(numbers, tokens, what)
    return np.ascontiguousarray(numbers)


def _numbers(x: NDArray[Any], what: str) -> NDArray[np.float32]:
    if x.dtype.kind not in "fiub":
        raise DataError(f"the {what} are of type {x.dtype}, but must be numbers")
    numbers = x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise DataError(f"the {what} contain NaN or infinity: remove or replace those examples")
    return numbers


def _whole(x: NDArray[Any], what: str) -> NDArray[np.int64]:
    if x.dtype.kind not in "iu":
        raise DataError(f"the {what} are of type {x.dtype}, but tokens must have an integer type")
    return x.astype(np.int64)


def _check_tokens(x: NDArray[Any], counts: int | Sequence[int], what: str) -> None:
    """Raise DataError for tokens [N, …] that no embedding has a row for; counts: of all entries, or of each."""
    limits = np.broadcast_to(counts, math.prod(x.shape[1:]))
    rows = x.reshape(len(x), -1)
    outside = ((rows < 0) | (rows >= limits)).any(axis=0)
    if outside.any():
        raise DataError(f"the {what} have a token outside 0 … {limits[outside][0] - 1}, the rows of the embedding")


def _arranged(x: NDArray[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
    given = x.shape[1:]
    if given == shape:
        return x
    channels_last = len(given) == 3 and (given[2], given[0], given[1]) == shape
    if channels_last and len(set(given)) > 1:
        return np.moveaxis(x, -1, 1)
    squeezed = tuple(n for n in given if n != 1) == tuple(n for n in shape if n != 1)
    flat = 1 in (len(given), len(shape)) and math.prod(given) == math.prod(shape)
    if squeezed or flat:
        return x.reshape(len(x), *shape)
    raise DataError(f"the {what} have shape {given} each: the network takes {shape}; reshape them in the file")


def _targets(y: NDArray[Any], count: int, classes: int | None, what: str) -> NDArray[Any]:
    if y.ndim == 0 or len(y) != count:
        raise DataError(f"there are {count} inputs for {what} of shape {y.shape}: each input needs one label")
    if y.dtype.kind not in "fiub":
        raise DataError(f"the {what} (type {y.dtype}) are no numbers: give each class a number, from 0 on")
    if not np.isfinite(y.astype(np.float64)).all():
        raise DataError(f"the {what} (type {y.dtype}) are not all finite numbers")
    if classes is None:
        return y.astype(np.float32) if y.dtype.kind == "f" else y.astype(np.int64)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or not (y == np.floor(y)).all():
        way = ", such as y.argmax(1) of rows that mark one class" if y.ndim == 2 else ""
        raise DataError(
            f"the {what} have shape {y.shape}, type {y.dtype}: each input needs one integer class index{way}"
        )
    if y.min() < 0 or y.max() >= classes:
        raise DataError(
            f"the {what} have a class index outside 0 … {classes - 1}, the classes of the network: count classes "
            "from 0, or give the network more outputs"
        )
    return y.astype(np.int64)
