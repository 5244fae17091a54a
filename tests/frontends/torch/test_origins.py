"""Trained weights go back into the module that they began in, which then computes what was trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lipcompile
from tests.nights import by_day

pytestmark = pytest.mark.slow


class Recurrent(nn.Module):
    """Cells whose two biases are summed on import, attention, and norms."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.gru = nn.GRU(12, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.lstm(self.words(x))
        h = self.attention(h, h, h, need_weights=False)[0]
        h, _ = self.gru(h)
        last: Tensor = self.last(self.norm(h).mean(1))
        return last


class Attending(nn.Module):
    """Attention, a cell and a norm: by day, as the cells of `Recurrent` take half a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        h = self.attention(h, h, h, need_weights=False)[0]
        h, _ = self.gru(h)
        last: Tensor = self.last(self.norm(h).mean(1))
        return last


class Adapted(nn.Module):
    """A frozen layer with a trained update of low rank (Hu et al., LoRA, 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 5)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)
        self.head = nn.Linear(5, 3)
        self.frozen.requires_grad_(requires_grad=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(self.frozen(x) + 2 * self.up(self.down(x))))
        return found


class Twice(nn.Module):
    """One layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.inner(torch.tanh(self.inner(x)))))
        return found


def convolutional() -> nn.Module:
    up = nn.ConvTranspose2d(4, 2, 3, groups=2)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(4), up, nn.Flatten(), nn.Linear(128, 3))


def changed(private: nn.Module) -> nn.Module:
    """Add noise to all that is trained, in place of a training."""
    with torch.no_grad():
        for parameter in private.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return private


def outputs(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = module.eval()(x)
    return found


TOKENS = torch.zeros(2, 5, dtype=torch.long)
PAIR = TOKENS[:, :2]
CASES: list[Any] = [
    pytest.param(Recurrent, TOKENS, "clip", marks=pytest.mark.nightly),
    (Attending, PAIR, "clip"),
    (Adapted, [6], "clip"),
    (Twice, [4], "clip"),
    (convolutional, [2, 8, 8], "clip"),
    (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), [4], "theorem"),
]


@pytest.mark.parametrize(("made", "example", "bounds"), CASES)
def test_the_module_computes_what_was_trained(made: Any, example: Any, bounds: Any) -> None:
    torch.manual_seed(0)
    module = made()
    options: dict[str, Any] = {"input_norm": 1.0} if bounds == "theorem" else {}
    private = changed(lipcompile.private(module, example, bounds=bounds, **options))
    frozen = {name: one.clone() for name, one in module.named_parameters() if not one.requires_grad}
    x = torch.randint(20, (7, example.shape[1])) if isinstance(example, Tensor) else torch.randn(7, *example)
    x = 0.9 * x / x.flatten(1).norm(dim=1).max() if bounds == "theorem" else x
    wanted = outputs(private, x)
    assert (outputs(module, x) - wanted).abs().max() > 1e-2
    lipcompile.load_trained(module, private, example, bounds=bounds, **options)
    assert torch.allclose(outputs(module, x), wanted, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(one, dict(module.named_parameters())[name]) for name, one in frozen.items())


def test_the_loss_is_that_of_the_private_module() -> None:
    """Two logits of three tokens are none of the cross entropy of one label."""
    torch.manual_seed(0)
    module = nn.Linear(4, 2)
    loss = "token_cross_entropy:temperature=3/2,class_weights=(1,0.1),ignore=-100"
    private = changed(lipcompile.private(module, [3, 4], loss=loss))
    lipcompile.load_trained(module, private, [3, 4])
    assert torch.equal(module.weight, private.get_parameter("linear_mat_mul.weight"))


@pytest.mark.filterwarnings("ignore:the emitted module computes in float32")
@pytest.mark.parametrize("trained", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("own", [torch.float32, torch.float64])
def test_weights_that_were_trained_in_another_dtype_are_rounded_to_that_of_the_module(
    own: torch.dtype, trained: torch.dtype
) -> None:
    module = nn.Linear(3, 2).to(own)
    private = lipcompile.private(module, [3], bounds="clip").to(trained)
    with torch.no_grad():
        private.linear.weight.fill_(0.1)
    lipcompile.load_trained(module, private, [3])
    assert torch.equal(module.weight, torch.full((2, 3), 0.1, dtype=trained).to(own))


def test_each_weight_goes_to_its_place() -> None:
    """By hand: of a layer [2, 3] entry by entry, and of an LSTM the sum of both biases to the first of them."""
    module = nn.Linear(3, 2)
    private = lipcompile.private(module, [3], bounds="clip")
    with torch.no_grad():
        private.linear.weight.copy_(torch.arange(6.0).view(2, 3))
        private.linear.bias.copy_(torch.tensor([7.0, 8.0]))
    lipcompile.load_trained(module, private, [3])
    assert module.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert module.bias.tolist() == [7, 8]

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(2, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.cell(x)[0][:, -1]
            return found

    cell = Cell()
    private = lipcompile.private(cell, [2, 2], bounds="clip")
    bias = next(one for name, one in private.named_parameters() if name.endswith("bias"))
    with torch.no_grad():
        bias.copy_(torch.arange(1.0, 13.0))
    lipcompile.load_trained(cell, private, [2, 2])
    assert cell.get_parameter("cell.bias_ih_l0").tolist() == list(range(1, 13))
    assert cell.get_parameter("cell.bias_hh_l0").tolist() == [0] * 12


@pytest.mark.parametrize("kind", by_day({torch.bfloat16}, [torch.float16, torch.bfloat16, torch.float64]))
def test_numbers_of_entries_need_several_digits(kind: torch.dtype) -> None:
    """70,000 entries: whole numbers are exact below 2^11 in float16, and below 2^8 in bfloat16."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(100, 600), nn.ReLU(), nn.Linear(600, 16)).to(kind)
    with pytest.warns(UserWarning, match="LIP124"):
        private = lipcompile.private(module, [100], bounds="clip")
    last = [one for name, one in private.named_parameters() if name.endswith("weight")][-1]
    with torch.no_grad():
        last.copy_(torch.randint(-8, 8, last.shape))
    lipcompile.load_trained(module, private, [100])
    assert torch.equal(module[2].get_parameter("weight"), last.to(kind))


def refused(module: nn.Module, private: nn.Module, example: Sequence[int], **options: Any) -> str:
    before = {name: one.clone() for name, one in module.state_dict().items()}
    with pytest.raises(lipcompile.InputError, match="LIP523") as found:
        lipcompile.load_trained(module, private, example, **options)
    assert all(torch.equal(before[name], one) for name, one in module.state_dict().items())
    return str(found.value)


def test_weights_of_another_module_are_refused() -> None:
    private = lipcompile.private(nn.Linear(3, 2), [3], bounds="clip")
    assert "comes from another module" in refused(nn.Linear(3, 4), private, [3])
    assert "trains no parameter" in refused(nn.Linear(3, 2).requires_grad_(requires_grad=False), private, [3])


def normalising() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    ).eval()
    nn.init.uniform_(module[1].get_parameter("weight"), 0.5, 2.0)
    nn.init.uniform_(module[1].get_buffer("running_var"), 0.5, 2.0)
    return module


def test_a_batch_normalisation_is_trained_by_clips_and_folded_by_theorems() -> None:
    """Folded, a weight is a product of several; replaced, the private module is another function."""
    module, example = normalising(), [3, 8, 8]
    options: dict[str, Any] = {"input_norm": 1.0, "constraint": "keep"}
    folded = lipcompile.private(module, example, bounds="theorem", **options)
    assert "computed from several weights" in refused(module, folded, example, **options)
    private, x = changed(lipcompile.private(module, example)), torch.randn(5, *example)
    lipcompile.load_trained(module, private, example)
    assert torch.allclose(outputs(module, x), outputs(private, x), rtol=1e-5, atol=1e-5)
    module.train()
    replaced = lipcompile.private(module, example, batch_norm="group_norm")
    assert "something else, by up to" in refused(module, replaced, example, batch_norm="group_norm")
    changed(replaced)
    lipcompile.load_trained(module, replaced, example, batch_norm="group_norm", verify_import=False)
    assert torch.equal(module.get_parameter("0.weight"), dict(replaced.named_parameters())["n_0.weight"])


def test_shared_weights_that_differ_are_refused() -> None:
    """A module that had two layers where this one has one layer twice."""

    class Two(Twice):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.last(torch.tanh(self.other(torch.tanh(self.inner(x)))))
            return found

    refused(Twice(), lipcompile.private(Two(), [4], bounds="clip"), [4])


def test_a_run_is_loaded_from_its_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    result = lipcompile.train(
        module,
        (x, y, x, y),
        tmp_path,
        epsilon=8,
        delta=1e-3,
        epochs=2,
        loss="cross_entropy",
        bounds="clip",
        how={"accountant": "rdp"},
    )
    lipcompile.load_trained(module, tmp_path, [4], bounds="clip")
    right = (outputs(module, torch.from_numpy(x)).argmax(1).numpy() == y).mean()
    assert right == pytest.approx(result.test_accuracy)


def test_a_weight_that_is_computed_has_no_way_back_and_is_named() -> None:
    """A norm of numbers of entries is 0 somewhere, and dividing by it gave NaN, of which the error spoke."""
    kernel = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 2))  # no op has a kernel for each example
    module = nn.Sequential(kernel, nn.Flatten(), nn.Linear(9, 3))
    with pytest.warns(UserWarning, match="LIP122"):
        private = lipcompile.private(module, [2, 4])
    told = refused(module, private, [2, 4])
    assert "`0.weight` is trained as it is, and not by its parametrisation WeightNorm" in told
    assert "remove what computes it" in told


class Scaled(nn.Module):
    """Factors that are exponentials of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.zeros(120)), nn.Linear(120, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale.exp())  # type: ignore[no-any-return]


def test_numbers_of_entries_that_overflow_have_no_meaning() -> None:
    """The exponential of entry 100 is infinite, and was taken for a place among the entries."""
    module = Scaled()
    with pytest.warns(UserWarning, match="LIP122"):
        private = lipcompile.private(module, [120], input_norm=1.0, bounds="theorem")
    assert "Exp computes from `scale`" in refused(module, private, [120], input_norm=1.0)


class Typed(nn.Module):
    """As in BERT: a row of a table, of the only kind of tokens, is added to all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.layer = nn.Embedding(2, 6), nn.Linear(6, 3)
        self.register_buffer("kind", torch.zeros(1, 4, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        kinds = self.kinds(self.get_buffer("kind").expand(len(x), -1))
        return self.layer(torch.relu(x + kinds).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("bounds", ["clip", "theorem"])
def test_a_row_that_all_tokens_get_is_one_parameter(bounds: Any) -> None:
    """It was a parameter for each token, so that no row of the table was what had been trained."""
    torch.manual_seed(0)
    module = Typed()
    options: dict[str, Any] = {"input_norm": 1.0, "constraint": "keep"} if bounds == "theorem" else {}
    private = changed(lipcompile.private(module, [4, 6], bounds=bounds, **options))
    assert sum(one.numel() for one in private.parameters()) == 6 + 18 + 3
    before = module.kinds.weight.detach().clone()
    lipcompile.load_trained(module, private, [4, 6], **options)
    x = 0.1 * torch.randn(5, 4, 6)
    assert torch.allclose(outputs(module, x), outputs(private, x), rtol=1e-5, atol=1e-5)
    assert (module.kinds.weight[0] != before[0]).all()
    assert torch.equal(module.kinds.weight[1], before[1])


class Masked(nn.Module):
    """Texts whose masks of other numbers than 0 and 1 make all that it computes infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        rows = self.table(words) * mask[..., None]
        return self.head(rows.mean(1)) / (2 - mask).clamp(0, 1).min(1).values[:, None]  # type: ignore[no-any-return]


def test_a_module_without_finite_numbers_of_random_tokens_is_compared_at_0_and_1() -> None:
    torch.manual_seed(0)
    module = Masked()
    example = {"words": torch.zeros(2, 4, dtype=torch.long), "mask": torch.ones(2, 4, dtype=torch.long)}
    private = changed(lipcompile.private(module, example))
    lipcompile.load_trained(module, private, example)
    assert torch.equal(module.head.bias, private.get_parameter("head.bias"))
