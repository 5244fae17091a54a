"""Images that a program draws: the same each time, and each another."""

from __future__ import annotations

import numpy as np
from lipcompile_torch.nn import synthetic_images


def test_synthetic_images_are_the_same_each_time_and_differ_among_each_other() -> None:
    for made, shape in (
        (synthetic_images.leaves(3), (3, 3, 32, 32)),
        (synthetic_images.strokes(3), (3, 1, 28, 28)),
    ):
        assert made.shape == shape
        assert made.dtype == np.uint8
        assert len({image.tobytes() for image in made}) == 3
    assert (synthetic_images.leaves(3) == synthetic_images.leaves(3)).all()
