"""Each op in standard operators, in spellings that the importer reads back.

One file a family, as in `lipcompile.ops`. Reflections, local responses of even sizes and
scattering are not read back.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile_onnx.writer import Emit

from . import (
    activation,
    attention,
    linear,
    merge,
    normalisation,
    parametric,
    pool,
    reduce,
    resample,
    scattering,
    shape,
)

EMITTERS: Mapping[str, Emit] = {
    **linear.EMITTERS,
    **activation.EMITTERS,
    **parametric.EMITTERS,
    **pool.EMITTERS,
    **reduce.EMITTERS,
    **shape.EMITTERS,
    **resample.EMITTERS,
    **scattering.EMITTERS,
    **merge.EMITTERS,
    **attention.EMITTERS,
    **normalisation.EMITTERS,
}
