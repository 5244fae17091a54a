"""The attacks of every op and every loss, as one table."""

from __future__ import annotations

from collections.abc import Mapping

from .families import (
    activation,
    attention,
    class_token,
    colour,
    dot_product,
    embedding,
    linear,
    losses,
    merge,
    normalisation,
    own,
    parametric,
    pointwise,
    pool,
    reduce,
    regression,
    resample,
    scattering,
    shape,
    softmax,
    whitening,
)
from .families.losses import LossAttack
from .family import Attack

ATTACKS: Mapping[str, Attack] = {
    **linear.ATTACKS,
    **activation.ATTACKS,
    **parametric.ATTACKS,
    **pool.ATTACKS,
    **reduce.ATTACKS,
    **shape.ATTACKS,
    **resample.ATTACKS,
    **colour.ATTACKS,
    **scattering.ATTACKS,
    **whitening.ATTACKS,
    **merge.ATTACKS,
    **pointwise.ATTACKS,
    **own.ATTACKS,
    **class_token.ATTACKS,
    **attention.ATTACKS,
    **dot_product.ATTACKS,
    **embedding.ATTACKS,
    **normalisation.ATTACKS,
    **softmax.ATTACKS,
}
LOSS_ATTACKS: Mapping[str, LossAttack] = {**losses.LOSS_ATTACKS, **regression.ATTACKS}
