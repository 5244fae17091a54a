"""What `fix` puts in the place of layers that cannot be imported, while it imports.

Front ends ask `ModelOptions.repairs`, which only `fix` and `batch_norm` set, where they would refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd
from typing import TYPE_CHECKING, Literal, get_args

from lipcompile.core.record import Shape

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

BatchNorm = Literal["group_norm", "center", "fold"]
BATCH_NORMS: tuple[BatchNorm, ...] = get_args(BatchNorm)
# Groups of channels that a norm has at most, and the name of a norm of statistics of a batch in .lip.
_MOST_GROUPS = 16
_EPS = Fraction(1, 100_000)  # of batch normalisation in torch
_NAMES = ("batchnorm", "batchnorm1d", "batchnorm2d", "batchnorm3d")


@dataclass(frozen=True, slots=True)
class Repaired:
    """A layer that was replaced, and by what."""

    place: str
    text: str


@dataclass(slots=True)
class Repairs:
    """How to fix, and what has been fixed so far.

    batch_norm: what takes the place of a batch normalisation in training mode: a norm of groups of channels of one
    example; centring of the example; or a map with the stored statistics, which the layer before takes in.
    floor: of the deviation σ that a norm divides by: 1 lets no norm stretch.
    with_eps: norms divide by √(σ² + 1e-5), as batch normalisation does: where all is clipped, nothing has to be
    Lipschitz, and behind norms with a floor the signal fades from layer to layer.
    unties: a stored tensor that is used in two ways becomes a weight for each.
    """

    batch_norm: BatchNorm = "group_norm"
    floor: Fraction = Fraction(1)
    with_eps: bool = False
    unties: bool = True
    made: list[Repaired] = field(default_factory=list)

    @property
    def divisor(self) -> dict[str, Fraction]:
        """What a norm that takes the place of a batch normalisation divides by, as its attributes say it."""
        return {"eps": _EPS} if self.with_eps else {"floor": self.floor}

    @property
    def said_divisor(self) -> str:
        """The same, as it is written."""
        return ", ".join(f"{name}={float(value):g}" for name, value in self.divisor.items())

    def prepare(self, model: ModelProto) -> None:
        """Let batch normalisations use their stored statistics, where that is wanted."""
        if self.batch_norm != "fold":
            return
        read = {name for node in model.graph.node for name in node.input}
        read |= {value.name for value in model.graph.output}
        for node in model.graph.node:
            if node.op_type == "BatchNormalization" and not read & set(node.output[1:]):
                self._use_statistics(node)

    def _use_statistics(self, node: NodeProto) -> None:
        modes = [entry for entry in node.attribute if entry.name == "training_mode" and entry.i]
        for mode in modes:
            mode.i = 0
            del node.output[1:]
            self.note(
                node.name or node.output[0], "batch norm -> its stored statistics, as a part of the layer before"
            )

    def note(self, place: str, text: str) -> None:
        """Remember a change."""
        self.made.append(Repaired(place, text))

    @staticmethod
    def names(layer: str) -> bool:
        """Whether a layer of .lip is called like a batch normalisation."""
        return layer.lower().replace("_", "") in _NAMES


def groups_of(example: Shape) -> int:
    """Return how many groups of channels a norm has that replaces a batch normalisation: of two channels at least.

    Vectors are one group: small groups of single entries would keep little but signs.
    """
    channels = example[0]
    return 1 if len(example) == 1 else max(gcd(channels // 2 if channels % 2 == 0 else 1, _MOST_GROUPS), 1)
