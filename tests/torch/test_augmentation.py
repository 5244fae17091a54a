"""Views of images are their own image moved, and mirrored, and all of these occur."""

from __future__ import annotations

import itertools

import pytest
import torch
from lipcompile_torch.augmentation import Augmentation
from torch import Tensor

IMAGE = torch.arange(12.0).reshape(3, 4)


def candidates(image: Tensor, shift: int, flip: bool) -> list[Tensor]:
    """All views of an image [H, W], pixel by pixel."""
    height, width = image.shape
    found = []
    for down, right in itertools.product(range(-shift, shift + 1), repeat=2):
        moved = torch.empty_like(image)
        for row, column in itertools.product(range(height), range(width)):
            place = min(max(row + down, 0), height - 1), min(max(column + right, 0), width - 1)
            moved[row, column] = image[place]
        found += [moved, moved.flip(1)] if flip else [moved]
    return found


@pytest.mark.parametrize(
    ("text", "shift", "flip"), [("flip", 0, True), ("shift:1", 1, False), ("flip,shift:1", 1, True)]
)
def test_views_are_all_moves_of_their_image(text: str, shift: int, flip: bool) -> None:
    """Of 18 candidates 1 is missed by 600 draws with probability below 18·(17/18)^600: 3e-14."""
    torch.manual_seed(0)
    found = Augmentation.of(text, 600)(IMAGE[None])[0]
    known = {tuple(one.flatten().tolist()) for one in candidates(IMAGE, shift, flip)}
    assert {tuple(one.flatten().tolist()) for one in found} == known


@pytest.mark.parametrize("shape", [(3, 5, 6), (1, 5, 6), (5, 6, 3), (5, 6, 1), (8, 5, 6)])
def test_channels_move_together(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    last = shape[2] in (1, 3)
    x = torch.rand(4, *shape)
    views = Augmentation(3, flip=True, shift=2)(x)
    assert views.shape == (4, 3, *shape)
    for image, own in zip(x, views, strict=True):
        planes = image.movedim(2, 0) if last else image
        known = [torch.stack(both) for both in zip(*(candidates(plane, 2, True) for plane in planes), strict=True)]
        for view in own:
            view = view.movedim(2, 0) if last else view
            assert any(torch.equal(view, one) for one in known)


def test_views_do_not_depend_on_other_images() -> None:
    x, other = torch.rand(4, 3, 5, 6), torch.rand(3, 5, 6)
    change = Augmentation(5, flip=True, shift=2)
    torch.manual_seed(1)
    before = change(x)
    x[2] = other
    torch.manual_seed(1)
    after = change(x)
    assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])


def test_a_batch_may_be_empty() -> None:
    assert Augmentation(4, flip=True)(torch.zeros(0, 1, 5, 6)).shape == (0, 4, 1, 5, 6)


@pytest.mark.parametrize("text", ["", "flop", "flip:2", "shift", "shift:-1", "shift:x", "shift:0", "flip;shift:2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"flip|shift"):
        Augmentation.of(text, 4)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"only images are augmented.*\[7\]"):
        Augmentation(2, flip=True)(torch.zeros(3, 7))
    with pytest.raises(ValueError, match="at least one view"):
        Augmentation(0, flip=True)
