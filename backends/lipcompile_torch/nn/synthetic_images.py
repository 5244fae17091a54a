"""Images that show nothing: shapes that hide each other, and strokes. Statistics of their features are public.

Means and covariances of features are what a private data set may not give away for free. Images made by a program
have much of what natural ones have: edges, occlusion, scales without a preference (Lee, Mumford and Huang 2001,
"Occlusion models for natural images"; Baradad et al. 2021 learn whole networks from such). Their constants decided
here were chosen by eye, without any data set.
"""

from __future__ import annotations

import io
import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
_FINER = 4  # how much larger pictures are drawn than they are
_TINTS = np.array([[1, 0, -1], [0.2, -0.4, 0.2]])


def leaves(count: int, size: int = 32, seed: int = 1) -> Images:
    """Return colour pictures [count, 3, size, size] of ellipses and rectangles on each other, with some texture.

    They pass JPEG at quality 75, as the copy of CIFAR-10 has.
    """
    source = np.random.default_rng(seed)
    return np.stack([_leaf(source, size) for _ in range(count)])


def strokes(count: int, size: int = 28, seed: int = 1) -> Images:
    """Return grey pictures [count, 1, size, size] of one to three thick Bézier curves on black."""
    source = np.random.default_rng(seed)
    return np.stack([_strokes(source, size) for _ in range(count)])[:, None]


def _leaf(source: np.random.Generator, size: int) -> Images:
    from PIL import Image, ImageDraw

    side = size * _FINER
    base, spread, chroma = (float(source.uniform(*ends)) for ends in ((50, 205), (15, 70), (5, 30)))
    ground = base + chroma * source.standard_normal() * np.array([1, 0, -1])
    picture = Image.new("RGB", (side, side), _colour(ground))
    draw = ImageDraw.Draw(picture)
    for _ in range(int(source.integers(8, 60))):
        tint = chroma * source.standard_normal(2) @ _TINTS
        fill = _colour(base + spread * source.standard_normal() + tint)
        draw.polygon(_outline(source, side), fill=fill)
    small = np.asarray(picture.resize((size, size), Image.Resampling.BOX)).astype(np.float64)
    textured = np.clip(small + source.uniform(2, 20) * _texture(source, size)[..., None], 0, 255)
    packed = io.BytesIO()
    Image.fromarray(textured.astype(np.uint8)).save(packed, "JPEG", quality=75)
    return np.asarray(Image.open(packed).convert("RGB")).transpose(2, 0, 1)


def _colour(values: NDArray[np.float64]) -> tuple[int, ...]:
    return tuple(int(min(max(value, 0), 255)) for value in values.tolist())


def _outline(source: np.random.Generator, side: int) -> list[float]:
    """Return x and y of one corner after the other."""
    radius = side * math.exp(source.uniform(math.log(0.05), math.log(0.9)))
    corners = 24 if source.random() < 0.6 else 4
    angles = _turns(corners) + source.uniform(0, 1)
    around = np.stack([radius * np.cos(angles), source.uniform(0.3, 1) * radius * np.sin(angles)])
    turn, centre = source.uniform(0, math.pi), source.uniform(-0.2 * side, 1.2 * side, 2)
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    outline: list[float] = ((rotation @ around).T + centre).ravel().tolist()
    return outline


@cache
def _turns(corners: int) -> NDArray[np.float64]:
    return np.linspace(0, 2 * math.pi, corners, endpoint=False)


def _texture(source: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Noise [size, size] of variance 1 whose spectrum falls as 1 / frequency^1.2."""
    noise = np.fft.ifft2(np.fft.fft2(source.standard_normal((size, size))) / _fall(size)).real
    return np.asarray(noise / noise.std())


@cache
def _fall(size: int) -> NDArray[np.float64]:
    along = np.fft.fftfreq(size)
    frequency = np.hypot(along[:, None], along[None])
    frequency[0, 0] = 1 / size
    return np.asarray(frequency**1.2)


def _strokes(source: np.random.Generator, size: int) -> Images:
    from PIL import Image, ImageDraw

    side = size * _FINER
    picture = Image.new("L", (side, side))
    draw = ImageDraw.Draw(picture)
    half = source.uniform(1.6, 3.6) * _FINER / 2
    t = np.linspace(0, 1, 40)[:, None]
    weights = np.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    for _ in range(int(source.integers(1, 4))):
        for x, y in weights @ source.uniform(0.2 * side, 0.8 * side, (4, 2)):
            draw.ellipse([x - half, y - half, x + half, y + half], fill=255)
    return np.asarray(picture.resize((size, size), Image.Resampling.BOX))
