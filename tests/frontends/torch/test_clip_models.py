"""Networks that have no useful theorem are accepted with bounds by clip, and train as they are."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_torch import PrivacyEngine
from lipcompile_verify import verify
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812  (its name everywhere in this field)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

import lipcompile
from lipcompile import pipeline
from lipcompile.__main__ import run
from lipcompile.analysis.clips import SOURCES
from lipcompile.certificates import certificate, encode
from lipcompile.core.backend import instantiate
from lipcompile.diagnostics import InputError
from lipcompile.frontends.options import Loaded, ModelOptions, model_options
from lipcompile.reports.console import plain
from lipcompile.reports.terminal import report
from lipcompile.reports.wording import verdict
from tests.nights import by_day


class Recurrent(nn.Module):
    """The last state of a recurrent layer; without biases, of which torch has two that do the same."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layer, self.head = kind(8, 16, batch_first=True, bias=False), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layer(x)
        output: Tensor = self.head(states[:, -1])
        return output


class Parts(nn.Module):
    """Parts of what no theorem bounds meet again in products, or in an attention."""

    def __init__(self, meet: str) -> None:
        super().__init__()
        self.layer, self.head, self.meet = nn.Linear(6, 6), nn.Linear(6, 3), meet
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        h = h / (1 + h.square())
        left, right = h.chunk(2, -1)
        if self.meet == "attention":
            met = self.attention(h, h, h)[0]
        elif self.meet == "product":
            met = torch.cat([left * right + left, right], -1)
        else:
            met = h * 0.0 + h
        output: Tensor = self.head(torch.tanh(met)).mean(1)
        return output


@pytest.mark.parametrize("meet", ["attention", "product", "zero"])
@pytest.mark.parametrize("bounds", ["clip", "auto"])
def test_parts_of_what_has_no_bound_meet(meet: str, bounds: Any) -> None:
    """Zero times infinity was no number, which the comparison of formulas does not take."""
    assert pipeline.from_module(Parts(meet), (4, 6), loss="cross_entropy", bounds=bounds, input_norm=1).ok


class Encoder(nn.Module):
    """Transformer encoder layers of torch, and the mean over the tokens."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.layers(x).mean(1))
        return output


class Block(nn.Module):
    """A block of a vision transformer, as timm writes it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        size, tokens, width = x.shape
        parts = self.qkv(self.first(x)).reshape(size, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(size, tokens, width)
        x = x + self.out(mixed)
        output: Tensor = x + self.mlp(self.second(x))
        return output


class ViT(nn.Module):
    """A small vision transformer with a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 16, 8, 8), nn.Sequential(Block(16, 4), Block(16, 4))
        self.token, self.position = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(torch.zeros(1, 5, 16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        output: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return output


class UNet(nn.Module):
    """Down, up, and beside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        beside = F.relu(self.first(x))
        up = F.relu(self.up(F.relu(self.down(beside))))
        return F.adaptive_avg_pool2d(self.last(torch.cat([beside, up], 1)), 1).flatten(1)


class Gated(nn.Module):
    """A product of two branches, behind a norm by the root mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.value = nn.RMSNorm(8), nn.Linear(8, 16), nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        output: Tensor = self.head(F.silu(self.gate(x)) * self.value(x))
        return output


def lenet() -> nn.Module:
    return nn.Sequential(
        *(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 4)),
    )


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "lenet": (lenet, (1, 28, 28)),
    "rnn": (lambda: Recurrent(nn.RNN), (3, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM), (3, 8)),
    "gru": (lambda: Recurrent(nn.GRU), (3, 8)),
    "encoder": (lambda: Encoder(norm_first=False), (5, 16)),
    "encoder, norm first": (lambda: Encoder(norm_first=True), (5, 16)),
    "vit": (ViT, (3, 16, 16)),
    "unet": (UNet, (1, 8, 8)),
    "gated": (Gated, (8,)),
}


Case = tuple[nn.Module, tuple[int, ...]]


@pytest.fixture(scope="module", params=by_day({"lenet", "rnn", "encoder", "unet", "gated"}, MODELS))
def loaded(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[int, ...], Loaded]:
    """A module, the shape of its examples, and what it is read as: torch exports it, which takes longest."""
    build, shape = MODELS[request.param]
    torch.manual_seed(0)
    module = build()
    return module, shape, pipeline.load_module(module, shape, model_options(loss="cross_entropy", bounds="auto"))


@pytest.fixture
def case(loaded: tuple[nn.Module, tuple[int, ...], Loaded], monkeypatch: pytest.MonkeyPatch) -> Case:
    module, shape, read = loaded

    def once(given: nn.Module, example: tuple[int, ...], options: ModelOptions) -> Loaded:
        assert (given, example) == (module, shape)
        assert options == model_options(loss="cross_entropy", bounds="auto")
        return read

    monkeypatch.setattr(pipeline, "load_module", once)
    return module, shape


def test_auto_clips_them_and_their_certificates_verify(case: Case) -> None:
    module, shape = case
    derivation = lipcompile.from_module(module, shape, loss="cross_entropy", bounds="auto")
    assert derivation.ok, derivation.diagnostics
    assert derivation.analysis is not None
    assert derivation.analysis.total.value == 1.0
    verdict = verify(json.loads(encode(certificate(derivation))))
    assert verdict.ok, verdict.problems


def test_they_keep_their_function_and_train_on_clipped_gradients(case: Case) -> None:
    """The gradient is the sum of g/(‖g‖ + 0.01) over the examples, of gradients of the reader's own module."""
    module, shape = case
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, *shape, generator=generator), torch.randint(0, 4, (24,), generator=generator)
    private = lipcompile.private(module, shape)
    assert torch.allclose(private(x), module(x), atol=1e-5)

    def loss(given: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, given, (example[None],)), label[None])

    own = {name: parameter.detach() for name, parameter in module.named_parameters()}
    if isinstance(module, Recurrent):  # torch's recurrent layers have no rule for vmap
        each = [grad(loss)(own, one, label) for one, label in zip(x, y, strict=True)]
        gradients = {name: torch.stack([one[name] for one in each]) for name in own}
    else:
        with sdpa_kernel(SDPBackend.MATH):
            gradients = vmap(grad(loss), (None, 0, 0))(own, x, y)
    norms = torch.cat([one.flatten(1) for one in gradients.values()], 1).double().norm(dim=1)

    engine = PrivacyEngine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private, optimizer, loader = engine.make_private(
            module=private,
            optimizer=torch.optim.SGD(private.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=24),
            noise_multiplier=1.0,
        )
    batch, labels = next(iter(loader))
    private.criterion(private(batch), labels).backward()
    rows = [int(((x - one).flatten(1).abs().sum(1)).argmin()) for one in batch]
    factors = 1 / (norms[rows] + 0.01)
    wanted = {n: torch.einsum("b,b...->...", factors, g[rows].double()) / 24 for n, g in gradients.items()}
    whole = sum(float(one.square().sum()) for one in wanted.values()) ** 0.5
    found = sum(float(p.grad.double().square().sum()) for p in private.parameters()) ** 0.5
    assert found == pytest.approx(whole, rel=1e-3)
    optimizer.step()
    assert engine.get_epsilon(1e-5) > 0


def test_a_hopeless_theorem_is_refused_and_told_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep.lip"
    layers = "repeat 9 { dense(64, constraint=spectral(1.5)); relu; dense(8) }"
    body = f"input x: tensor[64], norm <= 1\n {layers}\n dense(2)\n loss cross_entropy"
    path.write_text(f"model deep {{ {body} }}")
    assert run(["check", str(path), "--signal"]) == 1
    assert "LIP311" in capsys.readouterr().out
    assert run(["check", str(path), "--signal", "--allow-vacuous"]) == 0
    assert run(["compile", str(path), "-o", str(tmp_path / "m.py")]) == 1
    assert not (tmp_path / "m.py").exists()
    assert "--bounds auto" in capsys.readouterr().err
    assert run(["compile", str(path), "--bounds", "auto", "-o", str(tmp_path / "m.py")]) == 0


def test_auto_keeps_tight_theorems(tmp_path: Path) -> None:
    """One linear layer has K = √2·X_0 at most."""
    path = tmp_path / "linear.lip"
    path.write_text(
        "model m { input x: tensor[8], norm <= 1\n dense(3)\n loss cross_entropy }\ntrain { bounds auto }"
    )
    derivation = lipcompile.check(str(path))
    assert derivation.analysis is not None
    assert derivation.analysis.graph.clips == ()
    assert [found.code for found in derivation.diagnostics] == ["LIP315"]
    assert "at most 4·L·max(1, X_0)" in derivation.diagnostics[0].message


@pytest.mark.parametrize(
    ("norm", "said", "help_line"),
    [
        ("", "no input norm", "declare an input norm, and use --bounds theorem to prove bounds instead"),
        (", norm <= 1", "needs a loss", "use --bounds clip to clip instead"),
        (
            "\n loss mean_squared_error",
            "no theorem holds (mean_squared_error has no Lipschitz constant",
            "give a bound of ‖t‖, mean_squared_error:target_norm=1, or clip: --bounds clip",
        ),
    ],
)
def test_auto_claims_nothing_without_a_norm_or_a_loss(
    norm: str, said: str, help_line: str, tmp_path: Path
) -> None:
    path = tmp_path / "open.lip"
    path.write_text(
        f"model m {{ input x: tensor[8]{norm}\n dense(64)\n relu\n dense(3) }}\ntrain {{ bounds auto }}"
    )
    found = next(d for d in lipcompile.check(str(path)).diagnostics if d.code == "LIP315")
    assert said in found.message
    assert "at most" not in found.message
    assert found.help == help_line


class Normalised(nn.Sequential):
    """Two batch normalisations; the norms of the weights are above 1."""

    def __init__(self) -> None:
        layers = [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)]
        super().__init__(*layers)
        for layer in layers[::2]:
            nn.init.constant_(layer.weight, 3.0)  # type: ignore[arg-type]


def test_what_mixes_examples_is_refused_with_a_fix_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is said of constraints that a clipped weight would not have; the printed command is run as it is."""
    monkeypatch.chdir(tmp_path)
    model = f"{__name__}:Normalised"
    options = ["--loss", "cross_entropy", "--bounds", "auto"]
    assert run(["check", model, "--input-shape", "6", *options]) == 1
    out = capsys.readouterr().out
    assert "mixes the examples" in out
    assert "LIP305" not in out
    command = f"fix {model} --input-shape 6 -o fixed.onnx"
    assert f"run lipcompile {command}\n" in out
    assert run(command.split()) == 0
    assert run(["check", "fixed.onnx", *options]) == 0


def test_an_error_in_python_says_each_reason_once_and_its_fix() -> None:
    with pytest.raises(InputError) as raised:
        lipcompile.private(Normalised(), (6,))
    message = str(raised.value)
    assert message.count("mixes the examples") == 1
    assert "scaled down" not in message
    assert 'batch_norm="group_norm" replaces it' in message
    private = lipcompile.private(Normalised(), (6,), batch_norm="group_norm")
    assert private(torch.zeros(2, 6)).shape == (2, 3)


def test_what_is_written_of_a_clipped_model_does_not_claim_that_nothing_is_clipped(tmp_path: Path) -> None:
    written = lipcompile.compile(
        nn.Linear(6, 3), tmp_path / "m.py", example=(6,), loss="cross_entropy", bounds="clip"
    )
    header = written.read_text().split("from __future__")[0]
    assert "without clipping" not in header
    assert "clip `all`: 1.0000000 together, 2 parameters" in header
    derivation = lipcompile.from_module(nn.Linear(6, 3), (6,), loss="cross_entropy", bounds="clip")
    assert "by a clip in the backward pass" in verdict(derivation)


@pytest.mark.parametrize(("suffix", "said"), [("md", "clipped in `all`"), ("html", "clipped in <code>all</code>")])
def test_reports_name_the_clip_in_place_of_a_share(suffix: str, said: str, tmp_path: Path) -> None:
    """The bound is that of all parameters of the group together: none has a share of its own."""
    path = tmp_path / "net.lip"
    path.write_text(RESIDUAL)
    assert run(["report", str(path), "--bounds", "clip", "-o", str(tmp_path / f"r.{suffix}")]) == 0
    text = (tmp_path / f"r.{suffix}").read_text()
    assert text.count(said) == 5
    assert suffix == "html" or "20%" not in text  # the page draws them


def test_repeats_of_a_clipped_model_have_no_table_of_slopes(tmp_path: Path) -> None:
    path = tmp_path / "deep.lip"
    path.write_text("model m { input x: tensor[8]\n repeat 4 { dense(8); relu }\n dense(3)\n loss cross_entropy }")
    said = {
        source: plain(*report(lipcompile.check(str(path), model_options(bounds=source)), lambda _: None))
        for source in SOURCES
    }
    assert "copies" in said["theorem"]
    assert "copies" not in said["clip"]


RESIDUAL = """model net {
    input x: tensor[8]
    dense(6, bias=true); tanh
    residual(add) { dense(6, share="w"); tanh; dense(6) }
    tanh; dense(6, share="w"); dense(3)
    loss cross_entropy
}"""
GROUPED = {
    "flat": {"all": ["dense.weight", "dense.bias", "dense_2.weight", "dense_3.weight", "dense_5.weight"]},
    "layers": {
        "dense": ["dense.weight", "dense.bias"],
        **{f"dense_{i}": [f"dense_{i}.weight"] for i in (2, 3, 5)},
    },
    "blocks": {
        "dense": ["dense.weight", "dense.bias"],
        "dense_2": ["dense_2.weight", "dense_3.weight"],
        "dense_5": ["dense_5.weight"],
    },
}


@pytest.mark.parametrize("groups", GROUPED)
@pytest.mark.parametrize("said", ["option", "file", "python"])
def test_groups_are_flat_layers_or_blocks(
    groups: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weight that two layers share is where it is first; m groups of C = 1 have sensitivity √m."""
    path = tmp_path / "net.lip"
    path.write_text(RESIDUAL + (f"train {{ bounds clip, groups={groups} }}" if said == "file" else ""))
    options = model_options(bounds="clip", clip_groups=groups) if said == "python" else ModelOptions()
    if said == "option":
        assert run(["check", str(path), "--bounds", "clip", "--clip-groups", groups, "--format", "json"]) == 0
        report = json.loads(capsys.readouterr().out)
        found: dict[str, list[str]] = {}
        for parameter in report["parameters"]:
            found.setdefault(parameter["clip"]["group"], []).append(parameter["name"])
        total = report["total"]["gradient_bound"]["value"]
    else:
        derivation = lipcompile.check(str(path), options)
        assert derivation.analysis is not None
        found = {group.name: list(group.parameters) for group in derivation.analysis.graph.clips}
        total = derivation.analysis.total.value
        document = json.loads(encode(certificate(derivation)))
        assert {group["name"]: group["parameters"] for group in document["graph"]["clips"]} == found
        assert verify(document).ok
    assert found == GROUPED[groups]
    assert total == pytest.approx(len(found) ** 0.5, rel=1e-9)


def test_groups_hold_for_what_has_no_clip_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    path.write_text(RESIDUAL.replace("dense(3)", "dense(3, clip=0.5)"))
    derivation = lipcompile.check(str(path), model_options(bounds="clip", clip_groups="blocks"))
    assert derivation.analysis is not None
    assert [(g.name, float(g.length)) for g in derivation.analysis.graph.clips] == [
        ("dense_5", 0.5),
        ("dense", 1.0),
        ("dense_2", 1.0),
    ]
    assert derivation.analysis.total.value == pytest.approx(1.5)


def test_modules_have_the_groups_and_the_noise_of_their_number() -> None:
    module = lipcompile.private(lenet(), (1, 28, 28), bounds="clip", clip_groups="layers")
    assert [len(group.parameters) for group in module.clips] == [2] * 5
    assert [group.length for group in module.clips] == [1.0] * 5


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("rule", ["automatic", "0.5"])
def test_a_clip_of_a_recurrent_layer_is_one_group(cell: str, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    layers = f"a = {cell}(4, bias=true, sequence=true, clip={rule}); {cell}(4, clip={rule})"
    path.write_text(f"model net {{ input x: tensor[3, 5]\n {layers}\n dense(2, clip=1)\n loss cross_entropy }}")
    derivation = lipcompile.check(str(path))
    assert derivation.ok, derivation.diagnostics
    assert derivation.analysis is not None
    length = 1.0 if rule == "automatic" else 0.5
    assert [(group.parameters, float(group.length)) for group in derivation.analysis.graph.clips] == [
        (("a_input.weight", "a_input.bias", "a_state.weight"), length),
        ((f"{cell}_input.weight", f"{cell}_state.weight"), length),
        (("dense.weight",), 1.0),
    ]
    assert derivation.analysis.total.value == pytest.approx((2 * length**2 + 1) ** 0.5, rel=1e-9)
    assert verify(json.loads(encode(certificate(derivation)))).ok


def test_recurrent_layers_that_share_weights_share_their_clip(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    layer = 'gru(5, sequence=true, share="cell", clip=0.5)'
    path.write_text(f"model net {{ input x: tensor[3, 5]\n {layer}; {layer}\n flatten; dense(2, clip=1) }}")
    derivation = lipcompile.check(str(path))
    assert derivation.analysis is not None, derivation.diagnostics
    assert [group.parameters for group in derivation.analysis.graph.clips] == [
        ("gru_input.weight", "gru_state.weight"),
        ("dense.weight",),
    ]


def test_groups_of_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.lip"
    path.write_text(RESIDUAL)
    assert run(["check", str(path), "--clip-groups", "layers"]) == 2
    assert "nothing is clipped" in capsys.readouterr().err
    path.write_text(RESIDUAL + "train { bounds clip, groups=all }")
    assert run(["check", str(path)]) == 1
    assert "`groups` is one of flat, layers, blocks" in capsys.readouterr().out
    path.write_text(RESIDUAL + "train { bounds clip, layers }")
    assert run(["check", str(path)]) == 1
    assert "write groups=layers" in capsys.readouterr().out


@pytest.mark.parametrize("said", ["option", "file", "python"])
def test_a_length_holds_for_all_that_has_no_clip_of_its_own(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three groups of C = 1/4 beside one of 1/2 have sensitivity √(3/16 + 1/4)."""
    path = tmp_path / "net.lip"
    plan = "train { bounds clip, groups=layers, length=0.25 }" if said == "file" else ""
    path.write_text(RESIDUAL.replace("dense(3)", "dense(3, clip=0.5)") + plan)
    words = ["--bounds", "clip", "--clip-groups", "layers", "--clip-length", "0.25"] if said == "option" else []
    if said == "python":
        options = model_options(bounds="clip", clip_groups="layers", clip_length=0.25)
        total = lipcompile.check(str(path), options).analysis.total.value  # type: ignore[union-attr]
    else:
        assert run(["check", str(path), *words, "--format", "json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert {one["clip"]["length"] for one in report["parameters"]} == {0.25, 0.5}
        assert all(one["clip"]["regulariser"] is None for one in report["parameters"])
        total = report["total"]["gradient_bound"]["value"]
    assert total == pytest.approx((3 / 16 + 1 / 4) ** 0.5, rel=1e-9)


def test_an_option_comes_before_the_length_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    path.write_text(RESIDUAL + "train { bounds clip, length=0.25 }")
    for length, expected in ((0.5, 0.5), ("automatic", 1.0), (None, 0.25)):
        derivation = lipcompile.check(str(path), model_options(clip_length=length))  # type: ignore[arg-type]
        assert derivation.analysis is not None
        (group,) = derivation.analysis.graph.clips
        assert float(group.length) == expected
        assert (group.regulariser is None) == (length != "automatic")


@pytest.mark.parametrize("length", ["0", "-1", "nan", "much", "1e-12", "1e390"])
def test_lengths_that_are_none_are_refused(
    length: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.lip"
    path.write_text(RESIDUAL)
    assert run(["check", str(path), "--bounds", "clip", "--clip-length", length]) == 2
    assert "use a number such as 0.5, or automatic" in capsys.readouterr().err
    assert run(["check", str(path), "--clip-length", "1"]) == 2
    assert "nothing is clipped" in capsys.readouterr().err
    path.write_text(RESIDUAL + "train { bounds clip, length=0 }")
    assert run(["check", str(path)]) == 1
    assert "from 1e-9 to 1e9" in capsys.readouterr().out


def test_clipped_and_proved_parameters_stand_side_by_side(tmp_path: Path) -> None:
    """‖(0.1, K)‖ with K = L·1 of a bias on the logits, which depends on no other weight: L <= √2."""
    path = tmp_path / "mixed.lip"
    path.write_text(
        "model m { input x: tensor[8], norm <= 1\n dense(3, clip=0.1)\n bias(1)\n loss cross_entropy }"
    )
    derivation = lipcompile.check(str(path))
    assert derivation.ok, derivation.diagnostics
    assert derivation.analysis is not None
    assert derivation.analysis.parameters["dense.weight"].value == 0.1
    total = derivation.analysis.total.value
    assert total is not None
    assert total == pytest.approx((0.01 + 2) ** 0.5, rel=1e-9)
    verdict = verify(json.loads(encode(certificate(derivation))))
    assert verdict.ok, verdict.problems


@pytest.mark.parametrize(
    "middle", ["tanh", "sigmoid", "softmax", "clip_norm(1)", "layer_norm(axes=(0,), floor=0.5)"]
)
def test_bounds_behind_a_clipped_layer_hold_for_all_its_weights(middle: str, tmp_path: Path) -> None:
    """What stands between bounds the norm by itself: weights of 1e-3 to 1e12, gradients by torch alone."""
    path = tmp_path / "mixed.lip"
    last = "dense(3, clip=automatic, constraint=spectral(2))"
    body = f"dense(6, clip=0.5, bias=true); {middle}; dense(5); tanh; {last}"
    path.write_text(f"model m {{ input x: tensor[4], norm <= 1\n {body}; loss cross_entropy }}")
    module = lipcompile_module(path)
    bound, generator = module.bounds["dense_2.weight"], torch.Generator().manual_seed(0)
    parts = dict(module.named_parameters())
    for scale in (10.0 ** torch.arange(-3, 13, 3)).tolist():
        with torch.no_grad():
            for name, parameter in parts.items():
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * (scale if name in ("dense.weight", "dense.bias") else 10.0))
        module.project_()
        for label in range(3):
            x = torch.randn(1, 4, generator=generator)
            loss = F.cross_entropy(module(x), torch.tensor([label]))
            (found,) = torch.autograd.grad(loss, [parts["dense_2.weight"]])
            assert float(found.norm()) <= bound * (1 + 1e-5)


def lipcompile_module(path: Path) -> Any:
    """Return the module of a file, with theorems for what has no clip of its own."""
    output = lipcompile.compile(str(path), path.with_suffix(".py"), bounds="theorem")
    return instantiate(output, output.read_text())


def test_groups_have_names_of_their_own(tmp_path: Path) -> None:
    """A certificate is read group by group, by name."""
    path = tmp_path / "net.lip"
    path.write_text("model m { input x: tensor[4]\n dense(4); others = dense(4, clip=0.5); dense(3) }")
    derivation = lipcompile.check(str(path), model_options(bounds="clip"))
    assert derivation.analysis is not None, derivation.diagnostics
    assert [group.name for group in derivation.analysis.graph.clips] == ["others", "others_2"]


def test_layers_that_share_weights_have_one_clip(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    layers = (f'dense(4, share="w", clip={length})' for length in (0.5, 0.1))
    path.write_text(f"model m {{ input x: tensor[4]\n {'; '.join(layers)}; dense(3, clip=1) }}")
    (refused,) = lipcompile.check(str(path)).diagnostics
    assert refused.code == "LIP012"
    assert "constraints and clips" in refused.message


def test_frozen_weights_of_a_clipped_module_stay_as_they_are() -> None:
    first = nn.Linear(4, 4)
    module = nn.Sequential(first, nn.Tanh(), nn.Linear(4, 3))
    with torch.no_grad():
        first.weight.mul_(20)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    private = lipcompile.private(module, (4,), bounds="clip", freeze=["n_0.*"])
    private.project_()
    assert torch.equal(private(x), module(x))


@pytest.mark.parametrize(
    "layers", ["frozen { dense(4, clip=1) }; dense(3)", "dense(3); frozen { bias(1, clip=1) }"]
)
def test_a_clip_of_a_frozen_layer_is_refused(layers: str, tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    path.write_text(f"model m {{ input x: tensor[4], norm <= 1\n {layers}; loss cross_entropy }}")
    (refused,) = lipcompile.check(str(path)).diagnostics
    assert (refused.code, refused.severity) == ("LIP318", "error")
    assert "is frozen: it has no gradient to clip" in refused.message


def test_freezing_a_layer_with_a_clip_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    path.write_text("model m { input x: tensor[4]\n dense(4, clip=1); dense(3, clip=1); loss cross_entropy }")
    derivation = lipcompile.check(str(path), model_options(freeze=["dense.weight"]))
    assert derivation.ok
    assert [found.message[:17] for found in derivation.diagnostics if found.code == "LIP318"] == [
        "`dense` is frozen"
    ]
    assert not [d for d in lipcompile.check(str(path)).diagnostics if d.code == "LIP318"]


@pytest.mark.parametrize("bounds", SOURCES)
def test_nothing_to_train_is_said_as_such(bounds: Any) -> None:
    module = nn.Linear(4, 3).requires_grad_(False)
    with pytest.raises(InputError, match="nothing to train: every parameter is frozen") as raised:  # noqa: SIM117
        with pytest.warns(UserWarning, match="LIP307"):
            lipcompile.private(module, (4,), bounds=bounds)
    assert raised.value.diagnostics[0].code == "LIP307"


@pytest.mark.parametrize("loss", ["squared_error", "mean_squared_error"])
def test_squared_errors_need_no_bound_of_the_targets_where_all_is_clipped(loss: str, tmp_path: Path) -> None:
    """Targets of length 10⁶: the gradient of each example in the matrix is (½ or ⅔·½ of 2r)·xᵀ, clipped to 1."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 4, generator=generator), 1e6 * torch.randn(8, 3, generator=generator)
    module = nn.Linear(4, 3, bias=False)
    for bounds in ("clip", "auto"):
        output = lipcompile.compile(
            module, tmp_path / "net.py", example=(4,), loss=loss, bounds=bounds, input_norm=1, clip_length=1
        )
    assert run(["verify", str(output)]) == 0
    private = instantiate(output, output.read_text())
    each = private.per_example_loss(private(x), y)
    residual = module(x / x.norm(dim=1, keepdim=True).clamp(min=1)) - y
    torch.testing.assert_close(each, residual.square().sum(1) / (2 if loss == "squared_error" else 3))
    engine = PrivacyEngine()
    private, optimizer, loader = engine.make_private(
        module=private,
        optimizer=torch.optim.SGD(private.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=8),
        noise_multiplier=1.0,
    )
    for batch, targets in loader:
        private.criterion(private(batch), targets).backward()
        (gradient,) = (p.grad for p in private.parameters())
        assert 0.5 < float(gradient.norm()) * 8 <= len(batch)
        optimizer.step()
    with pytest.raises(ValueError, match="NaN or infinite"):
        private.per_example_loss(private(x), y / 0)
    with pytest.raises(InputError, match="no Lipschitz constant without a bound of the targets"):
        lipcompile.private(module, (4,), loss=loss, bounds="theorem", input_norm=1)


def test_squared_errors_beside_a_theorem_need_a_bound_of_the_targets(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    path.write_text("model m { input x: tensor[4], norm <= 1\n dense(3, clip=1); bias(1); loss squared_error }")
    (refused,) = lipcompile.check(str(path)).diagnostics
    assert refused.code == "LIP212"


OPEN = "model m {{ param n: int\n input x: tensor[4], norm <= 1\n {}; tanh; dense(3); loss cross_entropy }}"


def test_a_clip_within_a_repetition_of_open_count_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    path.write_text(OPEN.format("repeat n { dense(4, clip=0.5) }"))
    assert "LIP316" in {found.code for found in lipcompile.check(str(path)).diagnostics}


def test_free_norms_of_a_repetition_and_of_what_is_outside_are_different_symbols(tmp_path: Path) -> None:
    path = tmp_path / "net.lip"
    path.write_text(OPEN.format("dense(4, bias=true); repeat n { dense(4, bias=true) }"))
    analysis = lipcompile.check(str(path)).analysis
    assert analysis is not None
    names = {found.name for found in analysis.definitions}
    assert {"u_dense_bias", "u_repeat_1_dense_bias"} <= names


def test_signal_of_public_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one layer under hinge loss the gradient is as long as the input: a quarter of the bound."""
    path = tmp_path / "model.lip"
    path.write_text("model m { input x: tensor[4], norm <= 1\n dense(1)\n loss hinge }")
    x = np.zeros((20, 4), dtype=np.float32)
    x[:, 0] = 0.25
    np.savez(tmp_path / "public.npz", X=x, y=np.ones(20, dtype=np.float32))
    command = ["check", str(path), "--signal", "--public-data", str(tmp_path / "public.npz")]
    assert run(command) == 0
    told = capsys.readouterr().out
    (line,) = (line for line in told.splitlines() if line.startswith("whole gradient"))
    assert line.split()[2:5] == ["1", "0.25", "4"]
    assert "Gradients of public examples" in told
    np.savez(tmp_path / "public.npz", X=np.zeros((20, 5), dtype=np.float32), y=np.ones(20, dtype=np.float32))
    assert run(command) == 2
    assert "LIP403" in capsys.readouterr().err
