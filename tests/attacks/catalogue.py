"""The attacks of every op and every loss, as one table."""

from __future__ import annotations

from collections.abc import Mapping

from .families import activation, linear, losses, merge, parametric, pool, resample, shape
from .families.losses import LossAttack
from .family import Attack

ATTACKS: Mapping[str, Attack] = {
    **linear.ATTACKS,
    **activation.ATTACKS,
    **parametric.ATTACKS,
    **pool.ATTACKS,
    **shape.ATTACKS,
    **resample.ATTACKS,
    **merge.ATTACKS,
}
LOSS_ATTACKS: Mapping[str, LossAttack] = losses.LOSS_ATTACKS
