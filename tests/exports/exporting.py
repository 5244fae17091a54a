"""torch modules -> ONNX files, by either exporter of torch, without a word of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lipcompile.frontends.silence import silence_native
from tests.exports.architectures import ARCHITECTURES

# Operator sets that the exporters are asked for; the second one writes 18 where it is asked for less.
OPSETS = {"torchscript": (9, 13, 17, 20), "dynamo": (18, 20, 23)}
USUAL = {"torchscript": 17, "dynamo": 18}
# What torch.onnx raises for an operator that the operator set has no words for.
NO_WORDS = (torch.onnx.errors.UnsupportedOperatorError, torch.onnx.errors.SymbolicValueError)


@dataclass(frozen=True)
class Export:
    """What is exported how. exporter: `dynamo` is that of torch.export. fixed: a batch of one."""

    name: str
    exporter: str
    opset: int
    fixed: bool = False

    def __str__(self) -> str:
        return f"{self.name}-{self.exporter}-{self.opset}{'-fixed' if self.fixed else ''}"

    @property
    def dynamo(self) -> bool:
        """Whether torch.export traces the module."""
        return self.exporter == "dynamo"

    def write(self, folder: Path) -> Path:
        """Export the architecture; raises one of `NO_WORDS` where the operator set has no words for it."""
        architecture = ARCHITECTURES[self.name]
        path = folder / f"{self}.onnx"
        example = torch.zeros(1 if self.fixed or not self.dynamo else 2, *architecture.shape)
        kind = torch.onnx.TrainingMode.TRAINING if architecture.training else torch.onnx.TrainingMode.EVAL
        options: dict[str, Any] = {"training": kind} if not self.dynamo else {"external_data": False}
        if not self.fixed:
            options |= (
                {"dynamic_shapes": {"x": {0: "batch"}}} if self.dynamo else {"dynamic_axes": {"x": {0: "batch"}}}
            )
        with silence_native():
            torch.onnx.export(
                architecture.module(),
                (example,),
                str(path),
                input_names=["x"],
                opset_version=self.opset,
                dynamo=self.dynamo,
                **options,
            )
        return path


def exports(name: str, exporter: str) -> list[Export]:
    """Return every way in which an exporter is asked to write an architecture."""
    return [Export(name, exporter, opset, fixed) for opset in OPSETS[exporter] for fixed in (False, True)]
