"""`lipcompile fix`: what it changes, what that does to the bound, and that the result passes `check`."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from lipcompile import pipeline
from lipcompile.__main__ import run
from lipcompile.analysis.usefulness import Aim
from lipcompile.core.backend import find, instantiate
from lipcompile.core.graph import Graph
from lipcompile.fixing import FixOptions, Outcome, fix
from lipcompile.frontends.options import ModelOptions, model_options
from lipcompile.frontends.repairs import BATCH_NORMS, Repairs, groups_of
from lipcompile.pipeline import check
from tests.analysis.fix_models import ResNet, ViT, export
from tests.frontends.onnx.onnx_models import floats, save
from tests.frontends.onnx.onnx_models import model as onnx_model
from tests.frontends.onnx.onnx_models import node as onnx_node

SAID = ModelOptions(input_norm=Fraction(1), loss="cross_entropy")


def wishes(batch_norm: Any = "group_norm", **others: Any) -> FixOptions:
    return FixOptions(Repairs(batch_norm), **others)


def written(body: str, folder: Path, loss: str = "hinge") -> Path:
    path = folder / "model.lip"
    path.write_text(f"model m {{ input x: tensor[4], norm <= 1\n {body}\n loss {loss} }}")
    return path


def fixed_text(body: str, folder: Path, *, loss: str = "hinge", **others: Any) -> tuple[Outcome, list[str]]:
    """Fix a model; return what was done, and the statements of the result."""
    output = folder / "fixed.lip"
    outcome = fix(str(written(body, folder, loss)), ModelOptions(), wishes(**others), output)
    assert outcome.ok
    return outcome, [line.strip() for line in output.read_text().splitlines()][3:-2]


# Batch norm, against torch


class Instead(nn.Module):
    """What stands in the place of a batch norm, computed by torch."""

    def __init__(self, norm: nn.BatchNorm2d, kind: str) -> None:
        super().__init__()
        self.kind, self.norm = kind, norm

    def forward(self, x: Tensor) -> Any:
        groups = 1 if self.kind == "center" else groups_of(tuple(x.shape[1:]))
        parts = x.reshape(x.shape[0], groups, -1)
        parts = parts - parts.mean(2, keepdim=True)
        if self.kind == "group_norm":
            parts = parts / parts.square().mean(2, keepdim=True).sqrt().clamp(min=1.0)
        channel = (1, -1, 1, 1)
        return parts.reshape(x.shape) * self.norm.weight.reshape(channel) + self.norm.bias.reshape(channel)


def changed(module: nn.Module, kind: str) -> nn.Module:
    """Return the module with its batch norms replaced, or with their statistics for `fold`."""
    if kind == "fold":
        return module.eval()
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, Instead(child, kind))
        else:
            changed(child, kind)
    return module


def resnet() -> ResNet:
    """A network whose batch norms have factors, shifts and statistics of their own."""
    torch.manual_seed(1)
    module = ResNet()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
                assert tensor is not None
                tensor.uniform_(0.5, 1.5)
    return module


@pytest.mark.parametrize("kind", BATCH_NORMS)
def test_a_residual_network_with_batch_norms(tmp_path: Path, kind: str) -> None:
    """The result passes, has a finite bound, and computes what torch does with the same layers replaced."""
    module, output = resnet(), tmp_path / "fixed.onnx"
    source = export(module, 32, tmp_path / "resnet.onnx", dynamo=False)
    outcome = fix(str(source), SAID, wishes(kind), output)
    assert outcome.ok
    assert len({repaired.place for repaired in outcome.repaired}) == len(outcome.repaired) == 10
    analysis = check(str(output)).analysis
    assert analysis is not None
    assert analysis.total.value is not None
    assert math.isfinite(analysis.total.value)
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = changed(stored_in(source, module), kind)(x).numpy()
    session = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x.numpy()})
    assert np.allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [{"bounds": "clip"}, {"bounds": "auto"}, {"bounds": "auto", "input_norm": 1}])
def test_norms_in_the_place_of_batch_norms_have_no_floor_where_all_is_clipped(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Bounds by theorem are above the threshold of `auto`. Dropout draws nothing when the import is
    checked.
    """
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 5))
    source, output = export(module, 8, tmp_path / "net.onnx", dynamo=False), tmp_path / "fixed.onnx"
    outcome = fix(str(source), model_options(loss="cross_entropy", **options), wishes(), output)
    assert outcome.ok
    text = "batch norm -> group_norm(2, eps=1e-05), its factors and its shift"
    assert [one.text for one in outcome.repaired] == [text] * 2
    for layer in (1, 4):
        normalised = nn.GroupNorm(2, 4)
        normalised.load_state_dict({"weight": module[layer].weight, "bias": module[layer].bias})
        module[layer] = normalised
    x = 0.05 * torch.randn(3, 3, 8, 8)
    emitted = find().emit(check(str(output), model_options(bounds="clip")))
    found = instantiate(tmp_path / "model.py", emitted).eval()(x)
    assert torch.allclose(found, module.eval()(x), rtol=1e-4, atol=1e-5)
    assert run(["compile", str(output), "--bounds", "auto", "-o", str(tmp_path / "model.py")]) == 0


def test_norms_keep_their_floor_where_a_file_has_a_norm_and_a_theorem_holds(tmp_path: Path) -> None:
    source = written(
        "reshape(2, 2, 1); conv2d(2, kernel=1); batch_norm; flatten; dense(2)", tmp_path, "cross_entropy"
    )
    outcome = fix(str(source), ModelOptions(bounds="auto"), wishes(), tmp_path / "fixed.lip")
    assert outcome.ok
    assert [one.text for one in outcome.repaired] == ["batch norm -> group_norm(1, floor=1), scale, bias(1)"]
    assert outcome.check is not None
    assert outcome.check.analysis is not None
    assert not outcome.check.analysis.graph.clips


def stored_in(path: Path, module: nn.Module) -> nn.Module:
    """Give a module the tensors of a file: tracing it in training mode has moved its statistics."""
    found = {t.name: onnx.numpy_helper.to_array(t).copy() for t in onnx.load(path).graph.initializer}
    own = module.state_dict()
    module.load_state_dict({name: torch.from_numpy(found[name]) if name in found else own[name] for name in own})
    return module


@pytest.mark.nightly
def test_a_residual_network_of_the_other_exporter(tmp_path: Path) -> None:
    """It folds batch norms by itself, whatever the mode: nothing has to be changed."""
    source = export(resnet(), 32, tmp_path / "resnet.onnx", dynamo=True)
    outcome = fix(str(source), SAID, wishes(), tmp_path / "fixed.lip")
    assert outcome.ok
    assert not outcome.repaired


@pytest.mark.parametrize(
    "dynamo", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["torchscript", "dynamo"]
)
@pytest.mark.parametrize("first", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["post", "pre"])
def test_a_vision_transformer(tmp_path: Path, first: bool, dynamo: bool) -> None:
    """Its layer norms divide by √(σ² + 1e-5): five of them, 316⁵ times as steep as with a floor of 1."""
    source = export(ViT(first=first, token=True), 8, tmp_path / "vit.onnx", dynamo=dynamo)
    for output in (tmp_path / "fixed.lip", tmp_path / "fixed.onnx"):
        outcome = fix(str(source), SAID, wishes(), output)
        assert outcome.ok
        assert outcome.fixed is not None
        (norms,) = outcome.fixed.made
        assert (norms.kind.name, len(norms.places)) == ("norm", 5)
        assert norms.after < 1e6 < 1e12 < norms.before
        derivation = check(str(output))
        assert derivation.analysis is not None
        assert derivation.analysis.total.value == pytest.approx(norms.after, rel=1e-5)


def test_bounded_tokens_make_attention_less_steep(tmp_path: Path) -> None:
    source = export(ViT(first=True, token=True), 8, tmp_path / "vit.onnx", dynamo=False)
    outcome = fix(str(source), SAID, wishes(also=("attention",)), tmp_path / "fixed.lip")
    assert outcome.ok
    assert outcome.fixed is not None
    tokens = outcome.fixed.made[-1]
    assert (tokens.kind.name, len(tokens.places)) == ("attention", 2)
    assert tokens.after < tokens.before
    assert (tmp_path / "fixed.lip").read_text().count("rms_norm(floor=1/3)") == 2  # 3 = ⌈√8⌉


# One change at a time, by hand


def test_sums_become_means(tmp_path: Path) -> None:
    """x + Wx and then a row: K = 1 and 2. (x + Wx)/2: K = 1/2 and 1."""
    outcome, lines = fixed_text("residual(add) { dense(4) }; dense(1)", tmp_path, also=("residual",))
    assert outcome.fixed is not None
    (made,) = outcome.fixed.made
    assert [made.before, made.after] == pytest.approx([5**0.5, 1.25**0.5])
    assert lines == ["residual(mean) { dense(4) }", "dense(1)"]


def test_what_is_not_needed_is_not_done_but_told(tmp_path: Path) -> None:
    outcome, lines = fixed_text("residual(add) { dense(4) }; dense(1)", tmp_path)
    assert outcome.fixed is not None
    assert not outcome.fixed.made
    (left,) = outcome.fixed.left
    assert left.after == pytest.approx(1.25**0.5)
    assert lines == ["residual(add) { dense(4) }", "dense(1)"]


def test_a_useless_bound_is_brought_down(tmp_path: Path) -> None:
    """20 blocks that double: 2²⁰ is above 10⁶, so that means are taken; never if they are forbidden."""
    body = "repeat 20 { residual(add) { dense(4) } }; dense(1)"
    outcome, _ = fixed_text(body, tmp_path)
    assert outcome.fixed is not None
    assert [made.kind.name for made in outcome.fixed.made] == ["residual"]
    assert outcome.fixed.useful
    outcome, _ = fixed_text(body, tmp_path, never=("residual",))
    assert outcome.fixed is not None
    assert not outcome.fixed.made
    assert not outcome.fixed.useful


def test_bounds_beyond_doubles_are_brought_down_by_several_changes(tmp_path: Path) -> None:
    """Attention to tokens of length 10²⁰⁰, and norms of slope 10³⁰⁰ together: a double holds neither alone."""
    path = tmp_path / "long.lip"
    norms = "layer_norm(eps=1e-200); " * 3
    path.write_text(
        f"model m {{ input x: tensor[3, 4], norm <= 1e200\n dense(4); attention(1); {norms} flatten; dense(1)\n"
        " loss kr }"
    )
    outcome = fix(str(path), ModelOptions(), wishes(), tmp_path / "fixed.lip")
    assert outcome.fixed is not None
    assert [made.kind.name for made in outcome.fixed.made] == ["norm", "attention"]
    assert [math.isinf(made.after) for made in outcome.fixed.made] == [True, False]
    assert outcome.fixed.useful


def test_norms_get_a_floor(tmp_path: Path) -> None:
    """W, a norm of slope 10⁸, a row: K = 10⁸·X and min(2, 10⁸·X); with the floor 1, K = X and X."""
    outcome, lines = fixed_text("dense(4); layer_norm(eps=1e-16); dense(1)", tmp_path)
    assert outcome.fixed is not None
    (made,) = outcome.fixed.made
    assert [made.before, made.after] == pytest.approx([1e8, 2**0.5], rel=1e-6)
    assert lines == ["dense(4)", "layer_norm(floor=1)", "dense(1)"]


@pytest.mark.parametrize(
    ("direction", "changed"),
    [
        ("clip_norm(1e-8); add(weights=(1e8,))", ["clip_norm(1)", "add(weights=(1,))"]),
        ("rms_norm(floor=0.5e-8); add(weights=(0.5,))", ["rms_norm(floor=0.5)", "add(weights=(0.5,))"]),
    ],
)
def test_directions_get_a_floor(tmp_path: Path, direction: str, changed: list[str]) -> None:
    """W, x/max(1e-8, ‖x‖), a row: K = 10⁸ and 1; with the floor 1, K = 1 and 1."""
    outcome, lines = fixed_text(f"dense(4); {direction}; dense(1)", tmp_path)
    assert outcome.fixed is not None
    (made,) = outcome.fixed.made
    assert [made.before, made.after] == pytest.approx([1e8, 2**0.5], rel=1e-6)
    assert len(made.places) == 1
    assert lines == ["dense(4)", *changed, "dense(1)"]


def test_directions_with_a_floor_stay_as_they_are(tmp_path: Path) -> None:
    body = "dense(4); rms_norm(floor=0.5); add(weights=(0.5,)); clip_norm(3); add(weights=(1/3,)); dense(1)"
    outcome, _ = fixed_text(body, tmp_path, also=("norm",))
    assert outcome.fixed is not None
    assert not outcome.fixed.made


@pytest.mark.parametrize(("last", "size", "loss"), [("softmax", 3, "cross_entropy"), ("sigmoid", 1, "bce")])
def test_a_last_softmax_is_left_out_where_the_loss_has_its_own(
    tmp_path: Path, last: str, size: int, loss: str
) -> None:
    """Its effect is the bounds of the two models, checked by themselves."""
    alone, _ = fixed_text(f"dense({size})", tmp_path, loss=loss)
    checked = check(str(written(f"dense({size}); {last}", tmp_path, loss)))
    assert [found.code for found in checked.diagnostics] == ["LIP214"]
    outcome, lines = fixed_text(f"dense({size}); {last}", tmp_path, loss=loss)
    assert outcome.fixed is not None
    assert alone.fixed is not None
    assert checked.analysis is not None
    (made,) = outcome.fixed.made
    assert made.places == (last,)
    assert (made.before, made.after) == (checked.analysis.total.value, alone.fixed.total)
    assert lines == [f"dense({size})"]
    _, lines = fixed_text(f"dense({size}); {last}", tmp_path, loss=loss, never=("softmax",))
    assert lines == [f"dense({size})", last]


def test_a_softmax_that_no_loss_repeats_stays(tmp_path: Path) -> None:
    _, lines = fixed_text("dense(3); softmax", tmp_path, loss="nll")
    assert lines == ["dense(3)", "softmax"]


def test_a_tied_weight_becomes_two(tmp_path: Path) -> None:
    """y = relu(x·W)·(cW)ᵀ: two maps, of which one weight cannot be held to one norm."""
    made = [
        onnx_node("Gemm", "x w", "h"),
        onnx_node("Relu", "h", "r"),
        onnx_node("Mul", "w c", "v"),
        onnx_node("Gemm", "r v", "y", transB=1),
    ]
    weights = {"w": floats(4, 3), "c": floats(1)}
    source, output = save(onnx_model(made, ("n", 4), weights), tmp_path), tmp_path / "fixed.onnx"
    assert [found.code for found in check(str(source), SAID).diagnostics] == ["LIP308"]
    outcome = fix(str(source), replace(SAID, constraint="keep"), wishes(), output)
    assert outcome.reached
    assert [change.text for change in outcome.repaired] == [
        "`c`, `w`, which is used in another way -> a weight of its own"
    ]
    analysis = check(str(output), replace(SAID, constraint="keep")).analysis
    assert analysis is not None
    assert [parameter.shape for parameter in analysis.graph.parameters.values()] == [(3, 4), (4, 3)]
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32) / 10
    before, after = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for path in (source, output)
    )
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("last", ["Softmax", "LogSoftmax"])
def test_a_last_softmax_of_a_file(tmp_path: Path, last: str) -> None:
    made = [onnx_node("Gemm", "x w", "h"), onnx_node(last, "h", "y")]
    source = save(onnx_model(made, ("n", 4), {"w": floats(4, 3)}), tmp_path)
    outcome = fix(str(source), replace(SAID, loss="multi_margin"), wishes(), tmp_path / "fixed.onnx")
    assert outcome.ok
    (repaired,) = outcome.repaired
    assert repaired.text == f"last {last} -> left out, as the loss has its own"
    fixed_graph = check(str(tmp_path / "fixed.onnx")).analysis
    assert fixed_graph is not None
    assert [node.op.name for node in fixed_graph.graph.nodes] == ["dense"]


def test_pools_of_squares(tmp_path: Path) -> None:
    """Windows that overlap in four ways are 2-Lipschitz; apart they are 1-Lipschitz."""
    body = "reshape(1, 2, 2); pad(4); dense(10); max_pool(3, stride=2, padding=1); flatten; dense(1)"
    outcome, lines = fixed_text(body, tmp_path, also=("pool",))
    assert outcome.fixed is not None
    (made,) = outcome.fixed.made
    assert made.before / made.after == pytest.approx(2)
    assert "l2_pool(2)" in lines


def test_sorting_needs_pairs(tmp_path: Path) -> None:
    outcome, lines = fixed_text("dense(3); relu; dense(4); relu; dense(1)", tmp_path, also=("groupsort",))
    assert outcome.fixed is not None
    (made,) = outcome.fixed.made
    assert made.places == ("relu_2",)
    assert made.not_made == {"relu": "its 3 features do not divide into pairs"}
    assert lines == ["dense(3)", "relu", "dense(4)", "groupsort", "dense(1)"]


def test_batch_norm_of_lip(tmp_path: Path) -> None:
    _, lines = fixed_text("dense(6); bn = batch_norm(6, eps=0.1); relu; dense(1)", tmp_path)
    assert lines == ["dense(6)", "group_norm(1, floor=1)", "scale", "bn = bias(1)", "relu", "dense(1)"]
    _, lines = fixed_text("dense(6); BatchNorm1d; dense(1)", tmp_path, batch_norm="center")
    assert lines == ["dense(6)", "center", "scale", "bias(1)", "dense(1)"]


@pytest.mark.parametrize(
    ("shape", "groups"), [((64, 8, 8), 16), ((8, 4, 4), 4), ((6, 4), 1), ((7, 4), 1), ((64,), 1), ((2, 3), 1)]
)
def test_groups_have_two_channels_at_least(shape: tuple[int, ...], groups: int) -> None:
    assert groups_of(shape) == groups


def test_the_worked_example_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "fix.md").read_text(encoding="utf-8")
    _, model, _, told, _ = page.split("```")
    monkeypatch.chdir(tmp_path)
    Path("small.lip").write_text(model.lstrip())
    (line,) = re.findall(r"`lipcompile (fix small.lip .*?)`", page)
    assert run(line.split()) == 0
    assert capsys.readouterr().out.strip() == told.strip()


# What is kept, asked for and refused


def test_a_result_that_does_not_pass_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pipeline.check

    def rejecting(*arguments: Any) -> Any:
        found = honest(*arguments)
        wrong = replace(found.requirements.lipschitz_loss, ok=False)
        return replace(found, requirements=replace(found.requirements, lipschitz_loss=wrong))

    monkeypatch.setattr(pipeline, "check", rejecting)
    source = written("dense(1)", tmp_path)
    assert not fix(str(source), ModelOptions(), wishes(), tmp_path / "fixed.lip").ok
    assert sorted(tmp_path.iterdir()) == [source]


def command(*arguments: str | Path) -> int:
    return run(["fix", *map(str, arguments)])


def test_missing_declarations_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.lip"
    path.write_text("model m { input x: tensor[4] dense(2) }")
    assert command(path, "-o", tmp_path / "fixed.lip") == 0
    assert "declare --loss cross_entropy and --input-norm 1.0" in capsys.readouterr().out
    assert command(path, "-o", tmp_path / "fixed.lip", "--input-norm", "2", "--loss", "nll") == 0
    assert "please" not in capsys.readouterr().out
    assert "norm <= 2" in (tmp_path / "fixed.lip").read_text()


def test_what_nothing_fixes_is_told_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written("dense(4); batch_norm; nonsense; dense(1)", tmp_path)
    assert command(source, "-o", tmp_path / "fixed.lip") == 1
    told = capsys.readouterr()
    assert "unknown layer `nonsense`" in told.err
    assert "batch norm -> group_norm(1, floor=1), scale, bias(1): line 2" in told.out
    assert not (tmp_path / "fixed.lip").exists()


def test_each_change_is_told_with_its_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written("residual(add) { dense(4) }; dense(1)", tmp_path)
    assert command(source, "-o", tmp_path / "fixed.onnx", "--also", "residual") == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[:2] == [
        "sums of branches -> their means: add",
        "    2.2360680 becomes 1.1180340",
    ]
    assert "weights without values start at random ones" in told.out
    assert "it passes check, gradient of one example at most 1.1180340" in told.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("-o", "fixed.txt"),
        ("-o", "model.lip"),
        ("-o", "x.lip", "--floor", "0"),
        ("-o", "x.lip", "--target", "0"),
        ("--also", "magic"),
    ],
)
def test_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    written("dense(1)", tmp_path)
    assert command("model.lip", *arguments) == 2


# What is aimed at


def aimed(target: float | None) -> FixOptions:
    return wishes(aim=Aim(target))


def test_a_target_is_reached_by_the_changes_that_it_takes(tmp_path: Path) -> None:
    """x + Wx and then a row: √5; means: √1.25. Both are useful, so that without a target nothing is done."""
    source = str(written("residual(add) { dense(4) }; dense(1)", tmp_path))
    for target, made in ((None, []), (2.3, []), (2.2, ["residual"]), (1.12, ["residual"])):
        outcome = fix(source, ModelOptions(), aimed(target), tmp_path / "fixed.lip")
        assert outcome.reached
        assert outcome.fixed is not None
        assert [one.kind.name for one in outcome.fixed.made] == made


def test_a_target_makes_changes_that_nobody_asked_for_by_name(tmp_path: Path) -> None:
    """Windows that overlap in four ways let both weights have gradients of 2: √8. Windows apart: √2."""
    body = "reshape(1, 2, 2); pad(4); dense(10); max_pool(3, stride=2, padding=1); flatten; dense(1)"
    source = str(written(body, tmp_path))
    for target, made in ((None, []), (2.0, ["pool"])):
        outcome = fix(source, ModelOptions(), aimed(target), tmp_path / "fixed.lip")
        assert outcome.reached
        assert outcome.fixed is not None
        assert [one.kind.name for one in outcome.fixed.made] == made
        assert outcome.fixed.total == pytest.approx(2**0.5 if made else 8**0.5)


def test_several_changes_for_one_target(tmp_path: Path) -> None:
    """K of row, matrix and block: 2, 2·10⁸ and 10⁸; with a floor 2, 2 and 1; with means 1, 1 and 1/2."""
    body = "residual(add) { dense(4) }; dense(4); layer_norm(eps=1e-16); dense(1)"
    outcome = fix(str(written(body, tmp_path)), ModelOptions(), aimed(2), tmp_path / "fixed.lip")
    assert outcome.reached
    assert outcome.fixed is not None
    norm, means = outcome.fixed.made
    assert [norm.kind.name, means.kind.name] == ["norm", "residual"]
    assert [norm.before, norm.after, means.after] == pytest.approx([5**0.5 * 1e8, 3, 1.5], rel=1e-6)


def test_a_target_that_is_missed_is_told_with_its_distance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """√1.25 with means; nothing goes on from there. The file is kept: its bound holds."""
    source, output = written("residual(add) { dense(4) }; dense(1)", tmp_path), tmp_path / "fixed.lip"
    assert command(source, "-o", output, "--target", "1") == 1
    told = capsys.readouterr()
    assert "the target is missed: 1.1180340 is 1.12 times the 1 asked for" in told.out
    assert "passes" not in told.err
    assert "residual(mean)" in output.read_text()
    assert command(source, "-o", output, "--target", "1.2") == 0
    assert "the target" not in capsys.readouterr().out


def test_a_target_of_a_clip(tmp_path: Path) -> None:
    """The bound of a clip is its length, 1; nothing in the network makes it smaller."""
    source = str(written("residual(add) { dense(4) }; dense(1)", tmp_path))
    for target, reached in ((1.0, True), (0.5, False)):
        options = ModelOptions(bounds="clip")
        outcome = fix(source, options, aimed(target), tmp_path / "fixed.lip")
        assert outcome.reached == reached
        assert outcome.fixed is not None
        assert not outcome.fixed.made


def test_useful_is_what_is_not_far_above_the_gradients(tmp_path: Path) -> None:
    """The bound of √5 is useful by formulas; a measure of 51 times the gradients says that it is not."""
    source, asked = str(written("residual(add) { dense(4) }; dense(1)", tmp_path)), []

    def excess(graph: Graph) -> float:
        asked.append(graph)
        return 51.0 / len(asked)

    outcome = fix(source, ModelOptions(), wishes(aim=Aim(measure=excess)), tmp_path / "fixed.lip")
    assert outcome.fixed is not None
    assert [one.kind.name for one in outcome.fixed.made] == ["residual"]
    assert (outcome.reached, outcome.fixed.excess, len(asked)) == (True, 25.5, 2)
    outcome = fix(source, ModelOptions(), wishes(aim=Aim(measure=lambda _: 51.0)), tmp_path / "fixed.lip")
    assert not outcome.reached


def test_what_was_fixed_is_what_check_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten blocks whose norms make gradients of sums smaller, but not their bounds, which double."""
    source, output = tmp_path / "model.lip", tmp_path / "fixed.lip"
    block = "residual(add) { dense(16); layer_norm(floor=1); relu }"
    source.write_text(
        f"model m {{ input x: tensor[16], norm <= 4\n repeat 10 {{ {block} }}\n dense(1)\n loss hinge }}"
    )
    assert run(["check", str(source), "--signal"]) == 1
    assert command(source, "-o", output) == 0
    assert "sums of branches -> their means" in capsys.readouterr().out
    assert run(["check", str(output), "--signal"]) == 0
