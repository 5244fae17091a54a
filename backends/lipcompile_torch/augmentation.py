"""Random views of images: what an example is averaged over before its gradient is clipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Several random views of each image, for `LipschitzModule.on_views`.

    Gradients of views of one image share what the image says of the weights, and not what chance adds, so their
    mean is worth more beside the same noise ("augmentation multiplicity", De et al., "Unlocking high-accuracy
    differentially private image classification through scale", 2022).

    Args:
        views: V, of each image.
        flip: mirror each view from left to right with probability 1/2.
        shift: move each view by up to so many pixels along both axes; the pixels at the edge are repeated.

    Raises:
        ValueError: no views, a negative shift, or nothing at all that changes images.

    Formal guarantees: a view is made of its own image, and of draws of torch's generator that no other view has.
    An engine seeds that generator secretly with every batch.
    """

    views: int = 4
    flip: bool = False
    shift: int = 0

    def __post_init__(self) -> None:
        if self.views < 1 or self.shift < 0 or not (self.flip or self.shift):
            raise ValueError(f"{self}: give at least one view, and flip, or a shift of at least one pixel")

    @staticmethod
    def of(text: str, views: int) -> Augmentation:
        """Return an augmentation as the command line says it: "flip", "shift:4" or "flip,shift:4".

        Raises:
            ValueError: another text, or no views.
        """
        flip, shift = False, 0
        for part in text.split(","):
            name, colon, number = part.strip().partition(":")
            if name == "flip" and not colon:
                flip = True
            elif name == "shift" and number.isascii() and number.isdecimal():
                shift = int(number)
            else:
                raise ValueError(f"{part!r} is neither flip nor shift:PIXELS, such as flip,shift:4")
        return Augmentation(views, flip, shift)

    def check(self, shape: Sequence[int]) -> None:
        """Raise ValueError if examples of this shape are no images."""
        if len(shape) not in (2, 3):
            raise ValueError(
                f"only images are augmented, [H, W], [C, H, W] or [H, W, C]; these examples are {list(shape)}"
            )

    def __call__(self, x: Tensor) -> Tensor:
        """Return views [B, V, *image] of images [B, *image]: [H, W], [C, H, W], or [H, W, C] of one or three
        channels where C is not first.

        Raises:
            ValueError: other shapes.
        """
        image = x.shape[1:]
        self.check(image)
        if len(image) == 2:
            return self._of_planes(x[:, None])[:, :, 0]
        if image[0] not in (1, 3) and image[2] in (1, 3):
            return self._of_planes(x.movedim(3, 1)).movedim(2, 4)
        return self._of_planes(x)

    def _of_planes(self, x: Tensor) -> Tensor:
        """Return views [B, V, C, H, W] of [B, C, H, W]."""
        examples, channels, height, width = x.shape
        rows, columns = (self._places(examples * self.views, size) for size in (height, width))
        if self.flip:
            columns = torch.where(torch.rand(len(columns), 1) < 0.5, columns.flip(1), columns)
        rows, columns = rows.to(x.device), columns.to(x.device)
        image = torch.arange(examples, device=x.device).repeat_interleave(self.views)
        found = x.movedim(1, 3)[image[:, None, None], rows[:, :, None], columns[:, None, :]]
        return found.reshape(examples, self.views, height, width, channels).movedim(4, 2)

    def _places(self, count: int, size: int) -> Tensor:
        """Return the places [count, size] along an axis that so many views take their pixels from."""
        moves = torch.randint(-self.shift, self.shift + 1, (count, 1))
        return (torch.arange(size) + moves).clamp_(0, size - 1)
