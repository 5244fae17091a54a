"""torch modules -> ONNX files, by either exporter of torch, without a word of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lipcompile.frontends.quiet import silence_native
from tests.exports.architectures import ARCHITECTURES


@dataclass(frozen=True)
class Export:
    """What is exported how. dynamo: by torch.export, or by tracing with TorchScript. fixed: a batch of one."""

    name: str
    dynamo: bool
    opset: int
    fixed: bool = False

    def __str__(self) -> str:
        kind = "dynamo" if self.dynamo else "torchscript"
        return f"{self.name}-{kind}-{self.opset}{'-fixed' if self.fixed else ''}"

    def write(self, folder: Path) -> Path:
        """Export the architecture; raises whatever the exporter raises."""
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
