"""Common architectures by both exporters of torch: verdicts, outputs and bounds of docs/architectures.md.

CI takes each architecture once by each exporter; `pytest -m nightly` on this file takes every file.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lipcompile import from_module
from lipcompile.diagnostics import Severity
from tests.exports.architectures import ARCHITECTURES
from tests.exports.exporting import NO_WORDS, OPSETS, USUAL, Export, exports
from tests.exports.verdicts import attained, derived, difference, emitted, errors, unverified, verdict
from tests.nights import by_day

PAGE = (Path(__file__).parents[3] / "docs" / "architectures.md").read_text(encoding="utf-8")
VERDICTS, BOUNDS = (
    [[cell.strip() for cell in row.strip("|").split("|")] for row in part.splitlines() if row.startswith("|")][2:]
    for part in PAGE.partition("## Verdicts")[2].partition("<!-- end -->")[0].split("## Bounds")
)
# Also for other versions of torch, whose weights are rounded otherwise.
AGREE = 1e-5
ROUNDED = 0.01

# Some parameters, called what the modules are, and architectures of which all names are compared.
PARAMETERS = {
    "resnet": ("conv1", "layer1_0_conv1", "layer1_0_conv2", "layer2_0_downsample_0", "fc"),
    "unet": ("down1_0", "down1_3", "up2", "merge1_0", "head"),
    "efficientnet": ("features_0_0", "features_1_block_0", "features_1_block_6_fc1", "classifier_1"),
    "vit_torch": ("patch_embed", "encoder_layers_1_self_attn_in_proj", "encoder_layers_1_linear2", "head"),
}
OTHERS = {"vit_torch": {"cls_token.tokens", "pos_embed.bias"}}
ALIKE = ("densenet", "vit")

ALL_EXPORTS = [export for name in ARCHITECTURES for exporter in OPSETS for export in exports(name, exporter)]


def row_of(export: Export) -> list[str]:
    """The row of the table of verdicts."""
    key = [ARCHITECTURES[export.name].title, export.exporter]
    (found,) = [row for row in VERDICTS if row[:2] == key]
    return found


def bound_of(name: str) -> str:
    """The bound in the other table."""
    (found,) = [row[1] for row in BOUNDS if row[0] == ARCHITECTURES[name].title]
    return found


def assert_as_the_page_says(export: Export, path: Path, inputs: int) -> list[str]:
    """Check, verify and run a file, attack its bounds; return the parameters' names, none if it is refused."""
    architecture, (_, _, opsets, accepted, nodes, codes, _) = ARCHITECTURES[export.name], row_of(export)
    derivation = derived(export, path)
    found = verdict(derivation)
    assert (found.accepted, found.codes) == architecture.expected(export.exporter)
    assert found.accepted == (accepted == "accepted")
    assert (", ".join(found.codes) or "none") == codes
    assert str(export.opset) in opsets.split(", ")
    if not found.accepted:
        return []
    least, _, most = nodes.partition("–")
    assert int(least) <= found.nodes <= int(most or least)
    if bound_of(export.name) != "none":
        assert found.bound == pytest.approx(float(bound_of(export.name)), rel=ROUNDED)
    assert not unverified(derivation, path)
    module = emitted(derivation)
    assert difference(path, module) <= AGREE
    attack = attained(derivation, inputs)
    assert attack.sound, attack
    return [name for name, _ in module.named_parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("name", by_day({"mlp", "unet"}, ARCHITECTURES))
def test_each_architecture_by_both_exporters(name: str, tmp_path: Path) -> None:
    """Files are written once: exporting takes most of the time."""
    exported = [Export(name, exporter, USUAL[exporter]) for exporter in OPSETS]
    first, second = (assert_as_the_page_says(one, one.write(tmp_path), inputs=2) for one in exported)
    expected = {f"{layer}.weight" for layer in PARAMETERS.get(name, ())} | OTHERS.get(name, set())
    assert expected <= set(first) & set(second)
    assert name not in ALIKE or first == second


@pytest.mark.nightly
@pytest.mark.parametrize("export", ALL_EXPORTS, ids=str)
def test_every_file(export: Export, tmp_path: Path) -> None:
    try:
        path = export.write(tmp_path)
    except NO_WORDS:
        assert str(export.opset) not in row_of(export)[2].split(", ")
        return
    assert_as_the_page_says(export, path, inputs=20)


def test_the_page_has_a_row_for_each() -> None:
    titles = [architecture.title for architecture in ARCHITECTURES.values()]
    assert [row[:2] for row in VERDICTS] == [[title, exporter] for title in titles for exporter in OPSETS]
    assert [row[0] for row in BOUNDS] == titles


def test_attacks_of_the_page_exceed_no_bound() -> None:
    shares = [cell for row in BOUNDS for cell in row[3:6] if cell]
    assert len(shares) == 3 * (len(ARCHITECTURES) - 1)
    assert all(re.fullmatch(r"\d\d?%|[1-9]e-\d\d|100%", share) for share in shares)


def test_a_refusal_names_every_module_and_the_fix(tmp_path: Path) -> None:
    export = Export("resnet_train", "torchscript", USUAL["torchscript"])
    found = errors(derived(export, export.write(tmp_path)))
    blocks = [f"layer{stage}.{block}.bn{index}" for stage in (1, 2) for block in (0, 1) for index in (1, 2)]
    assert {one.node for one in found} == {"bn1", "layer2.0.downsample.1", *blocks}
    assert all(one.op == "BatchNormalization" and "evaluation mode" in one.help for one in found)


def test_a_file_that_forgot_the_training_mode_names_the_first_module(tmp_path: Path) -> None:
    export = Export("resnet_train", "dynamo", USUAL["dynamo"])
    (found,) = derived(export, export.write(tmp_path)).diagnostics
    assert (found.code, found.severity, found.node) == ("LIP114", Severity.WARNING, "bn1")
    assert "`bn1` and 9 more" in found.message


@pytest.mark.parametrize("name", by_day({"lstm"}, ["resnet", "vit_torch", "lstm", "unet"]))
def test_modules_themselves_have_the_bounds_of_their_files(name: str) -> None:
    one = ARCHITECTURES[name]
    derivation = from_module(one.module(), one.shape, input_norm=1, loss=one.loss, constraint="keep")
    found = verdict(derivation)
    assert (found.accepted, found.codes) == one.said
    assert found.bound == pytest.approx(float(bound_of(name)), rel=ROUNDED)
