"""Where arrays come from besides `.npz` files: a folder of images, and data sets that are asked item by item."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from lipcompile_privacy.errors import DataError
from numpy.typing import NDArray

_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_IMAGE, _LABEL = ("image", "img", "pixel_values", "x", "input"), ("label", "labels", "fine_label", "y", "target")
_PARTS = ("train", "test")
_TEST_SHARE = 0.2


def images_in(
    folder: str | os.PathLike[str], colours: bool | None = None, size: tuple[int, int] | None = None
) -> dict[str, NDArray[Any]]:
    """Read images whose folders are their classes: `cats/1.png`, or `train/cats/1.png` and `test/cats/2.png`.

    Without `train` and `test` each image is one to test on by a fixed public hash of its path, with probability
    1/5: by itself, since another name or class of one file moves the places of those behind it. Classes are
    numbered in the order of their names, which are taken to be public, and so is their size.

    Args:
        folder: with the folders.
        colours: whether each image gets three channels, or is made grey; None: as they are, and all alike.
        size: height and width in pixels. An image of another size is scaled until it covers them, and cut to its
            centre, by itself; None: as they are, and all alike.

    Returns:
        x_train, y_train, x_test and y_test: uint8 [N, H, W] or [N, H, W, 3], and int64 [N].

    Raises:
        DataError: there are no folders of images, sizes or kinds differ, or a file, which is named, is no image;
            or no image is one to train or to test on.
        OSError: a file cannot be read.
    """
    root, classes = Path(folder), class_names(folder)
    if _is_parted(root):
        train, test = (_read(root / part, classes, colours, size)[:2] for part in _PARTS)
    else:
        x, y, held_out = _read(root, classes, colours, size)
        if held_out.all() or not held_out.any():
            raise DataError(f"{root} has too few images to hold some out: put them into folders train and test")
        train, test = ((x[rows], y[rows]) for rows in (~held_out, held_out))
    return {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}


def class_names(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names of the classes of a folder of images, see `images_in`, in the order of their numbers."""
    root = Path(folder)
    homes = [root / part for part in _PARTS] if _is_parted(root) else [root]
    return sorted({name for home in homes for name in _folders(home)})


def _is_parted(root: Path) -> bool:
    return _folders(root) == sorted(_PARTS)


def _folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _is_image(path: Path) -> bool:
    """By the name: what begins with a dot, systems and editors put beside images."""
    return path.suffix.lower() in _ENDINGS and not path.name.startswith(".")


def images_below(
    path: str | os.PathLike[str], colours: bool | None = None, size: tuple[int, int] | None = None
) -> tuple[list[str], NDArray[np.uint8]]:
    """Read an image, or all images of a folder and of those in it; the names of classes mean nothing here.

    Returns:
        their paths, and uint8 [N, H, W] or [N, H, W, 3]; arguments and exceptions are those of `images_in`.
    """
    root = Path(path)
    inside = root.rglob("*") if root.is_dir() else [root]
    found = sorted(filter(_is_image, inside))
    if not found:
        raise DataError(f"{root} has no images: their names end in {', '.join(sorted(_ENDINGS))}")
    return [str(image) for image in found], _alike(root, [_image(image, colours, size) for image in found])


def _alike(root: Path, images: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return the images in one array; raises DataError where they have several shapes."""
    if len({image.shape[:2] for image in images}) > 1:
        raise DataError(f"the images in {root} have different sizes: {_SHAPE}")
    if len({image.ndim for image in images}) > 1:
        raise DataError(f"some of the images in {root} are grey and some are coloured: {_SHAPE}")
    return np.stack(images)


def _read(
    root: Path, classes: Sequence[str], colours: bool | None, size: tuple[int, int] | None
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the images below the folders of these classes, their numbers, and which are to be held out."""
    found = [
        (path, number)
        for number, name in enumerate(classes)
        for path in (sorted((root / name).iterdir()) if (root / name).is_dir() else [])
        if _is_image(path)
    ]
    if len(classes) < 2 or not found:
        raise DataError(f"{root} has no folders of images: put the images of each class into one folder")
    images = _alike(root, [_image(path, colours, size) for path, _ in found])
    numbers = np.array([number for _, number in found], dtype=np.int64)
    return images, numbers, np.array([_is_held_out(path.relative_to(root)) for path, _ in found])


def _is_held_out(path: Path) -> bool:
    return int.from_bytes(blake2b(path.as_posix().encode(), digest_size=8).digest()) < _TEST_SHARE * 2**64


_SHAPE = "give each one shape, such as --input-shape 3,32,32 for colours, height and width"


def _image(path: Path, colours: bool | None, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Return an image as a camera was held, uint8 [H, W] if it is grey, else [H, W, 3]; None: as it is."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            if opened.mode[0] in "IF":
                raise DataError(f"{path} has more than 8 bits for a pixel, which would be cut to 255: convert it")
            coloured = opened.mode != "L" if colours is None else colours
            image = ImageOps.exif_transpose(opened).convert("RGB" if coloured else "L")
            return np.asarray(image if size is None else ImageOps.fit(image, size[::-1]))
    except DataError:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} cannot be read as an image") from error


def items_of(dataset: Any) -> tuple[NDArray[Any] | dict[str, NDArray[Any]], NDArray[Any]]:
    """Return the inputs and labels of a data set whose items are pairs, or mappings with an image and a label.

    So `torch.utils.data.Dataset` of known length, and a split of Hugging Face's `datasets`. The input of a pair
    may be a mapping of several inputs by their names, which becomes one of arrays.

    Raises:
        DataError: it has no length or no items, or items are neither, or have different shapes, types or names.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            "the data set is a stream, but private sampling selects examples by index: use a map-style data set"
        )
    pairs = [_pair(dataset[index]) for index in range(len(dataset))]
    if not pairs:
        raise DataError("the data set has no items")
    inputs = [x for x, _ in pairs]
    labels = [np.asarray(y) for _, y in pairs]
    names = {tuple(sorted(x)) if isinstance(x, dict) else None for x in inputs}
    if len(names) > 1:
        raise DataError("the items of the data set have different inputs: give each item the same ones, by name")
    if len({y.dtype.kind for y in labels}) > 1:
        raise DataError(_OTHER_TYPES)
    if isinstance(inputs[0], dict):
        return {name: _stacked([x[name] for x in inputs]) for name in inputs[0]}, np.asarray(labels)
    return _stacked(inputs), np.asarray(labels)


_OTHER_TYPES = "the items of the data set have different types of numbers, by which all are scaled: convert each"


def _stacked(items: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len({x.shape for x in items}) > 1:
        raise DataError("the items of the data set have different shapes: transform each item to one common shape")
    if len({x.dtype for x in items}) > 1:
        raise DataError(_OTHER_TYPES)
    return np.stack(items)


def _pair(item: Any) -> tuple[Any, Any]:
    """Return an input, or several by name, and a label."""
    if isinstance(item, Mapping):
        names = [next((name for name in known if name in item), None) for known in (_IMAGE, _LABEL)]
        if None in names:
            raise DataError(f"items have the keys {', '.join(map(str, item))}: rename two to image and label")
        item = tuple(item[name] for name in names)
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError("the items of the data set must be pairs of an input and a label")
    if isinstance(item[0], Mapping):
        return {name: np.asarray(x) for name, x in item[0].items()}, np.asarray(item[1])[()]
    return np.asarray(item[0]), np.asarray(item[1])[()]
