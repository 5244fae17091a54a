"""Weights as text, for emitted files that carry the weights they were imported with. Needs no torch."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.floating]]

_BASE64 = "base64:"  # text without it is base85, as it was written before: Python needs a second for 3 MB of that


def encode_weights(arrays: Mapping[str, NDArray[np.floating]]) -> str:
    """Return arrays as one line of base64 text: an npz file, compressed by zlib.

    The same arrays give the same text.
    """
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **dict(sorted(arrays.items())))
    return _BASE64 + base64.b64encode(zlib.compress(stream.getvalue(), 1)).decode("ascii")


def decode_weights(text: str) -> Arrays:
    """Return the arrays that :func:`encode_weights` wrote; whitespace in the text is skipped.

    Raises:
        ValueError: the text is damaged.
    """
    try:
        line = "".join(text.split())
        rest = line.removeprefix(_BASE64)
        coded = base64.b85decode(line) if rest == line else base64.b64decode(rest, validate=True)
        packed = zlib.decompress(coded)
        with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zlib.error, ValueError, OSError, EOFError) as error:
        raise ValueError("the embedded weights are damaged: emit the file again") from error
