"""What is said of fifteen models of torchvision, timm and transformers: the last table of docs/architectures.md.

    pip install torchvision timm transformers
    python -m benchmarks.zoo [--only NAME …] [--write]

No weights are downloaded: models start at random, those of transformers with few and narrow layers. Each is
checked as its library makes it, in training mode, and after `.eval()`, as it is fine-tuned; with bounds by
theorem, with `--bounds auto`, and after `lipcompile fix`. Prints the table; with --write it replaces that of the
page. The exit code is 1 if a model is refused in every way.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.exports import PAGE, number
from benchmarks.harness import Some, line, show
from benchmarks.harness import options as said
from lipcompile import pipeline
from lipcompile.analysis.clips import Source
from lipcompile.analysis.usefulness import judged
from lipcompile.diagnostics import Severity
from lipcompile.fixing import FixOptions, fix
from lipcompile.frontends.options import ModelOptions, model_options
from lipcompile.frontends.repairs import Repairs

BEGIN, END = "<!-- begin: python -m benchmarks.zoo --write -->", "<!-- end of the zoo -->"
CLASSES, WORDS, TOKENS = 10, 100, 8


class Logits(nn.Module):
    """A model of transformers that returns its logits alone, for pixels or for tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        """Return the logits."""
        return self.model(x).logits


class LastToken(nn.Module):
    """A model of transformers of whose last state a linear layer makes logits."""

    def __init__(self, model: nn.Module, width: int) -> None:
        super().__init__()
        self.model, self.head = model, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        """Return the logits."""
        return self.head(self.model(x).last_hidden_state[:, -1])


def of_torchvision(name: str) -> nn.Module:
    """Return a model for images of 64 by 64."""
    torch.manual_seed(0)
    model: nn.Module = import_module("torchvision").models.get_model(name, weights=None, num_classes=CLASSES)
    return model


def of_timm(name: str, **more: Any) -> nn.Module:
    """Return a model for images of 64 by 64."""
    torch.manual_seed(0)
    model: nn.Module = import_module("timm").create_model(name, pretrained=False, num_classes=CLASSES, **more)
    return model


def of_transformers(kind: str, task: str, **more: Any) -> nn.Module:
    """Return a model of two layers of 32 features."""
    transformers = import_module("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**more)
    model: nn.Module = getattr(transformers, f"AutoModel{task}").from_config(config)
    return model


def bert() -> nn.Module:
    """Return a small one."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    words = {"vocab_size": WORDS, "max_position_embeddings": 16, "num_labels": CLASSES}
    return Logits(of_transformers("Bert", "ForSequenceClassification", **sizes, **words))


def distilbert() -> nn.Module:
    """Return a small one."""
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    words = {"vocab_size": WORDS, "max_position_embeddings": 16, "num_labels": CLASSES}
    return Logits(of_transformers("DistilBert", "ForSequenceClassification", **sizes, **words))


def vit() -> nn.Module:
    """Return a small one."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    pixels = {"image_size": 64, "patch_size": 16, "num_labels": CLASSES}
    return Logits(of_transformers("ViT", "ForImageClassification", **sizes, **pixels))


def gpt2() -> nn.Module:
    """Return a small one."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": WORDS}
    return LastToken(of_transformers("GPT2", "", **sizes, bos_token_id=0, eos_token_id=0), 32)


resnet18 = partial(of_torchvision, "resnet18")
squeezenet = partial(of_torchvision, "squeezenet1_1")
mobilenet = partial(of_torchvision, "mobilenet_v3_small")
efficientnet = partial(of_torchvision, "efficientnet_b0")
densenet121 = partial(of_torchvision, "densenet121")
convnext = partial(of_torchvision, "convnext_tiny")
swin = partial(of_torchvision, "swin_t")
resmlp = partial(of_timm, "resmlp_12_224", img_size=64)
poolformer = partial(of_timm, "poolformer_s12")
nf_resnet = partial(of_timm, "nf_resnet50")
deit = partial(of_timm, "deit_tiny_patch16_224", img_size=64)

# By what the table calls them: the library, what makes them, the shape of an example.
MODELS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-18": ("torchvision", resnet18, (3, 64, 64)),
    "SqueezeNet 1.1": ("torchvision", squeezenet, (3, 64, 64)),
    "MobileNetV3, small": ("torchvision", mobilenet, (3, 64, 64)),
    "EfficientNet-B0": ("torchvision", efficientnet, (3, 64, 64)),
    "DenseNet-121": ("torchvision", densenet121, (3, 64, 64)),
    "ConvNeXt, tiny": ("torchvision", convnext, (3, 64, 64)),
    "Swin-T": ("torchvision", swin, (3, 64, 64)),
    "ResMLP-12": ("timm", resmlp, (3, 64, 64)),
    "PoolFormer-S12": ("timm", poolformer, (3, 64, 64)),
    "NF-ResNet-50": ("timm", nf_resnet, (3, 64, 64)),
    "DeiT, tiny": ("timm", deit, (3, 64, 64)),
    "BERT": ("transformers", bert, (TOKENS,)),
    "DistilBERT": ("transformers", distilbert, (TOKENS,)),
    "ViT": ("transformers", vit, (3, 64, 64)),
    "GPT-2, its last token": ("transformers", gpt2, (TOKENS,)),
}


@dataclass(frozen=True)
class Said:
    """What was said of a model in one way: the exit code, the bound, and the codes of errors."""

    code: int
    bound: float | None
    errors: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = number(self.bound) if self.code == 0 or self.bound is not None else ", ".join(self.errors)
        return f"{self.code}: {shown}"


def options(shape: tuple[int, ...], bounds: Source | None = None) -> ModelOptions:
    """Return the options of a check: images of norm 1, and a cross entropy."""
    norm = 1 if len(shape) > 1 else None
    return model_options(input_norm=norm, loss="cross_entropy", bounds=bounds)


def checked(module: nn.Module, shape: tuple[int, ...], bounds: Source | None = None) -> Said:
    """Check a module as it is."""
    found = judged(pipeline.of_module(module, shape, options(shape, bounds)), allow_vacuous=False)
    errors = tuple(dict.fromkeys(d.code for d in found.diagnostics if d.severity == Severity.ERROR))
    total = None if found.analysis is None else found.analysis.total.value
    return Said(0 if found.ok else 1, total, errors)


def fixed(name: str, shape: tuple[int, ...], folder: Path) -> Said:
    """Fix a model as `lipcompile fix` does, in training mode."""
    maker = next(key for key, value in globals().items() if value is MODELS[name][1])
    given = replace(options(shape), input_shape={"": shape})
    outcome = fix(f"benchmarks.zoo:{maker}", given, FixOptions(Repairs()), folder / "fixed.lip")
    errors = tuple(dict.fromkeys(d.code for d in outcome.diagnostics if d.severity == Severity.ERROR))
    total = outcome.check.analysis.total.value if outcome.check and outcome.check.analysis else None
    return Said(0 if outcome.reached else 1, total, errors)


@dataclass(frozen=True)
class Row:
    """One model: as it is made, in evaluation mode, there by `--bounds auto`, and fixed."""

    name: str
    made: Said
    evaluated: Said
    auto: Said
    fixed: Said

    @property
    def cells(self) -> Iterator[str]:
        """What the table has."""
        yield from (self.name, MODELS[self.name][0])
        yield from map(str, (self.made, self.evaluated, self.auto, self.fixed))


def examined(name: str, folder: Path) -> Row:
    """Check one model in all ways."""
    _, make, shape = MODELS[name]
    made, evaluated = checked(make().train(), shape), checked(make().eval(), shape)
    return Row(name, made, evaluated, checked(make().eval(), shape, "auto"), fixed(name, shape, folder))


def table(rows: list[Row]) -> str:
    """Return the table."""
    head = ("model", "library", "as made", "after `.eval()`", "… `--bounds auto`", "`fix`")
    lines = [line(*head), line("---", "---", *["--:"] * 4), *(line(*row.cells) for row in rows)]
    return "\n".join([*lines, ""])


def main() -> int:
    """Examine, print or write; return the exit code."""
    arguments = said(__doc__, only=Some([*MODELS]), write=False)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            start = time.perf_counter()
            rows.append(examined(name, Path(folder)))
            print(*rows[-1].cells, f"{time.perf_counter() - start:.0f} s", sep=" | ", file=sys.stderr, flush=True)
    show(table(rows), PAGE, BEGIN, END, arguments.write)
    return int(any(all(said.code for said in (row.made, row.evaluated, row.auto, row.fixed)) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
