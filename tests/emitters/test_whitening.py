"""Whitened features from .lip to the emitted module and its certificate; what they refuse."""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from lipcompile_torch.nn import functional as lf
from lipcompile_verify import emitted, files
from lipcompile_verify.document import ForeignError

from lipcompile.certificates import certificate
from lipcompile.diagnostics import InputError
from lipcompile.emitters.onnx.emit import to_onnx
from lipcompile.emitters.torch.emit import emit
from lipcompile.exporting import export_onnx
from lipcompile.pipeline import check
from tests.emitters.test_emit import assert_within_bounds, build, derive

SCATTERING = "whitened_scattering2d(4, source=strokes, scales=1, angles=4, floor=0.1, images=12)"
MIRRORED = SCATTERING.replace("whitened", "mirrored")
PATCHES = "whitened_patches(3, 2, images=12)"


def model(layer: str, size: str = "1, 9, 11", before: str = "") -> str:
    return f"input x: tensor[{size}], norm <= 2\n {before} {layer} flatten dense(3) loss cross_entropy"


@pytest.mark.parametrize("layer", [SCATTERING, MIRRORED, PATCHES])
def test_the_bound_of_the_head_is_that_of_length_one(tmp_path: Path, layer: str) -> None:
    derivation = derive(tmp_path, model(layer))
    assert derivation.analysis is not None
    (bound,) = derivation.analysis.parameters.values()
    assert bound.value == derivation.analysis.loss_lipschitz.value
    network = build(derivation, tmp_path)
    assert network.features_norm <= 1
    assert_within_bounds(network, "cross_entropy")


def test_the_emitted_module_whitens(tmp_path: Path) -> None:
    network = build(derive(tmp_path, model(SCATTERING)), tmp_path)
    x = torch.rand(3, 1, 9, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 10
    held = network.whitened_scattering2d
    logarithms = torch.log(lf.scattering2d(x, 1, 4) + 0.1).flatten(2)
    found = (held.matrix @ (logarithms - held.mean)).flatten(1)
    torch.testing.assert_close(network.frozen_features(x), found / found.norm(dim=1, keepdim=True))


def test_the_emitted_module_adds_the_mirror_image(tmp_path: Path) -> None:
    """Written out for one scale and four angles: θ becomes -θ where the first and the third wave change places."""
    network = build(derive(tmp_path, model(MIRRORED)), tmp_path)
    x = torch.rand(3, 1, 9, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 10
    held = network.mirrored_scattering2d
    logarithms = torch.log(lf.scattering2d(x, 1, 4, centred=True) + 0.1)
    added = (logarithms + logarithms[:, [0, 3, 2, 1, 4]].flip(3))[..., :3]
    found = (held.matrix @ (added.flatten(2) - held.mean)).flatten(1)
    torch.testing.assert_close(network.frozen_features(x), found / found.norm(dim=1, keepdim=True))


def test_constants_are_saved_with_the_weights(tmp_path: Path) -> None:
    network = build(derive(tmp_path, model(SCATTERING)), tmp_path)
    other = copy.deepcopy(network)
    with torch.no_grad():
        other.whitened_scattering2d.matrix.neg_()
    network.load_state_dict(other.state_dict())
    assert torch.equal(network.whitened_scattering2d.matrix, other.whitened_scattering2d.matrix)
    assert not any("whitened" in name for name, _ in network.named_parameters())


@pytest.mark.parametrize(
    ("layer", "size", "code"),
    [
        ("whitened_scattering2d(channels=4)", "9, 11", "LIP102"),
        ("whitened_scattering2d(channels=4)", "2, 9, 11", "LIP102"),
        ("whitened_scattering2d(4, source=strokes)", "3, 9, 11", "LIP102"),
        ("whitened_scattering2d(82)", "1, 9, 11", "LIP103"),
        ("whitened_scattering2d(channels=4, scales=4)", "1, 9, 11", "LIP103"),
        ("whitened_scattering2d(channels=4, floor=0)", "1, 9, 11", "LIP104"),
        ("whitened_scattering2d(channels=4, power=-1)", "1, 9, 11", "LIP104"),
        ("whitened_scattering2d(channels=4, power=101)", "1, 9, 11", "LIP104"),
        ("whitened_scattering2d(channels=4, images=200000)", "1, 9, 11", "LIP104"),
        ("mirrored_scattering2d(channels=4)", "9, 11", "LIP102"),
        ("mirrored_scattering2d(82)", "1, 9, 11", "LIP103"),
        ("whitened_patches(3)", "9, 11", "LIP102"),
        ("whitened_patches(3)", "4, 9, 11", "LIP102"),
        ("whitened_patches(10)", "1, 9, 11", "LIP103"),
        ("whitened_patches(3, floor=0)", "1, 9, 11", "LIP104"),
    ],
)
def test_refusals(tmp_path: Path, layer: str, size: str, code: str) -> None:
    path = tmp_path / "model.lip"
    path.write_text(f"model net {{ {model(layer, size)} }}")
    assert [diagnostic.code for diagnostic in check(str(path)).diagnostics] == [code]


@pytest.mark.parametrize("layer", [SCATTERING, MIRRORED, PATCHES])
def test_nothing_before_them_is_trained(tmp_path: Path, layer: str) -> None:
    path = tmp_path / "model.lip"
    path.write_text(f"model net {{ {model(layer, before='conv2d(1, kernel=3, padding=1)')} }}")
    assert "LIP111" in [diagnostic.code for diagnostic in check(str(path)).diagnostics]


@pytest.mark.parametrize("layer", [SCATTERING, MIRRORED, PATCHES, "whitened_patches(2, 3, floor=0.3, images=12)"])
def test_an_exported_file_computes_the_same_with_the_constants_of_the_module(tmp_path: Path, layer: str) -> None:
    network = build(derive(tmp_path, model(layer, "3, 9, 11" if "2, 3" in layer else "1, 9, 11")), tmp_path)
    held = getattr(network, layer.partition("(")[0])
    with torch.no_grad():
        held.matrix.copy_(held.matrix.flip(0))
    assert export_onnx(network, tmp_path / "m.onnx").ok


def test_without_a_module_there_are_no_constants(tmp_path: Path) -> None:
    analysis = derive(tmp_path, model(SCATTERING)).analysis
    assert analysis is not None
    with pytest.raises(InputError, match="constants of `whitened_scattering2d` are only in the module"):
        to_onnx(analysis.graph)


@pytest.mark.parametrize(
    ("layer", "old", "new"),
    [
        (SCATTERING, "source='strokes'", "source='leaves'"),
        (SCATTERING, "floor=0.1", "floor=0.2"),
        (SCATTERING, "channels=4", "channels=3"),
        (SCATTERING, "self.whitened_scattering2d(x)", "self.dense(x)"),
        (SCATTERING, "layers.WhitenedScattering2d", "layers.WhitenedPatches"),
        (SCATTERING, "layers.WhitenedScattering2d", "layers.MirroredScattering2d"),
        (MIRRORED, "layers.MirroredScattering2d", "layers.WhitenedScattering2d"),
        (PATCHES, "images=12", "images=13"),
        (PATCHES, "(1, 9, 11), 3, 2", "(1, 9, 11), 2, 2"),
    ],
)
def test_the_verifier_reads_the_layer_back_and_no_other(tmp_path: Path, layer: str, old: str, new: str) -> None:
    derivation = derive(tmp_path, model(layer))
    document = json.loads(json.dumps(certificate(derivation)))
    text = emit(derivation)
    derive_again = partial(files.derived, document)
    emitted.check(text.encode(), document, derive_again)
    assert len(re.findall(re.escape(old), text)) == 1
    with pytest.raises(ForeignError):
        emitted.check(text.replace(old, new).encode(), document, derive_again)
