"""Each op in standard operators, in spellings that the importer reads back.

One file a family, as in `lipcompile.ops`. Reflections, local responses of even sizes and
scattering are not read back.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipcompile.emitters.onnx.writer import Emit
from lipcompile.ops.activation import onnx_write as activation
from lipcompile.ops.attention import onnx_write as attention
from lipcompile.ops.conv import onnx_write as conv
from lipcompile.ops.embedding import onnx_write as embedding
from lipcompile.ops.linear import onnx_write as linear
from lipcompile.ops.merge import onnx_write as merge
from lipcompile.ops.normalisation import onnx_write as normalisation
from lipcompile.ops.parametric import onnx_write as parametric
from lipcompile.ops.pool import onnx_write as pool
from lipcompile.ops.reduce import onnx_write as reduce
from lipcompile.ops.resample import onnx_write as resample
from lipcompile.ops.scattering import onnx_write as scattering
from lipcompile.ops.shape import onnx_write as shape

EMITTERS: Mapping[str, Emit] = {
    **linear.EMITTERS,
    **conv.EMITTERS,
    **embedding.EMITTERS,
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
