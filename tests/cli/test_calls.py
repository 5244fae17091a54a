"""The commands as functions of Python: what they take, refuse, and leave on disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lipcompile_torch.train.data import DataError
from lipcompile_torch.train.ledger import read_ledger
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile.__main__ import run
from lipcompile.diagnostics import InputError

SETTINGS: dict[str, Any] = {"loss": "cross_entropy", "epsilon": 1, "delta": 1e-3, "epochs": 1, "batch_size": 10}


def data() -> tuple[Any, ...]:
    x = np.random.default_rng(0).standard_normal((40, 4))
    y = (x[:, 0] > 0).astype(np.int64)
    return x, y, x[:10], y[:10]


def net(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


class Squared(nn.Module):
    """The stored kernel is used plain and squared: no layer does that."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.linear = nn.Parameter(torch.randn(2, 1, 3)), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        plain, squared = (F.conv1d(x[:, None], kernel) for kernel in (self.kernel, self.kernel.square()))
        found: Tensor = self.linear(x) + (plain * squared).sum(2)
        return found


def test_the_way_to_train_what_no_rule_covers_is_named() -> None:
    with pytest.raises(InputError, match="or use --bounds clip, which computes such a module"):
        lipcompile.private(Squared(), [8], bounds="theorem")
    with pytest.raises(InputError) as mixes:
        lipcompile.private(nn.Sequential(nn.Linear(8, 2), nn.BatchNorm1d(2)), [8], bounds="theorem")
    assert "one example at a time" not in str(mixes.value)


class Beyond(nn.Module):
    """An index that is too large: a constant one, or one that is computed of the example."""

    def __init__(self, constant: bool) -> None:
        super().__init__()
        self.constant, self.table, self.linear = constant, nn.Embedding(5, 1), nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        column = x[:, 99][:, None] if self.constant else self.table((0 * x[:, 0]).long() + 7)
        found: Tensor = self.linear(column)
        return found


def test_an_index_that_is_too_large_is_told_with_its_line() -> None:
    """Every pass of the module fails on it."""
    with pytest.raises(InputError, match="index 99 is out of bounds") as refused:
        lipcompile.private(Beyond(constant=True), [4])
    (found,) = refused.value.diagnostics
    assert (found.code, found.help.partition(";")[0]) == ("LIP023", "use an index within the axis")
    assert found.location is not None
    assert "x[:, 99]" in Path(__file__).read_text().splitlines()[(found.location.line or 0) - 1]
    told = rf"could not be checked: the module fails at {re.escape(__file__)}:\d+: IndexError: index out of range"
    with pytest.warns(UserWarning, match=told):
        lipcompile.private(Beyond(constant=False), [4], bounds="clip")


@pytest.mark.parametrize("value", ["1", [1]])
@pytest.mark.parametrize(
    "name", ["epsilon", "delta", "epochs", "batch_size", "learning_rate", "average", "views", "seed", "loss_clip"]
)
def test_what_is_no_number_is_refused_before_the_model_is_read(name: str, value: object, tmp_path: Path) -> None:
    """A text is none, as what it says is for the reader of the command line to find out."""
    how = {} if name in SETTINGS else {name: value}
    settings = SETTINGS | ({name: value} if name in SETTINGS else {})
    with pytest.raises(TypeError, match=rf"^{name} must be a (whole )?number, not "):
        lipcompile.train("missing.lip", data(), tmp_path / "run", how=how, **settings)
    with pytest.raises(TypeError, match=r"^epochs must be a whole number, not 1\.5"):
        lipcompile.train("missing.lip", data(), tmp_path / "run", **(SETTINGS | {"epochs": 1.5}))


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, lambda array: array.tolist()])
def test_data_of_any_kind(kind: Any, tmp_path: Path) -> None:
    """Doubles become what the module computes in, as those of a file do."""
    result = lipcompile.train(net(), tuple(map(kind, data())), tmp_path / "run", **SETTINGS)
    assert result.steps == 4
    assert (tmp_path / "run/model.py").is_file()


def test_a_delta_that_permits_to_publish_an_example_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="permits publishing one example"):
        lipcompile.train(net(), data(), tmp_path / "run", **{**SETTINGS, "delta": 0.5})


def test_labels_out_of_range_leave_no_folder(tmp_path: Path) -> None:
    x, y, *test = data()
    with pytest.raises(DataError, match="a class index outside 0 … 1"):
        lipcompile.train(net(), (x, y + 1, *test), tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_one_array_of_floats_does_not_scale_the_others(tmp_path: Path) -> None:
    """A list of images of uint8 is divided by 255; it was not where one of them was of floats."""
    x, y = list(np.full((40, 4), 200, np.uint8)), np.arange(40) % 2
    with pytest.raises(DataError, match="different types of numbers"):
        lipcompile.train(net(), ([*x[1:], x[0].astype(float)], y, x, y), tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_targets_of_another_shape_leave_no_folder(tmp_path: Path) -> None:
    x, _, *_ = data()
    y = np.zeros((40, 3), np.float32)
    with pytest.raises(InputError, match="targets must be floats of shape"):
        lipcompile.train(net(), (x, y, x, y), tmp_path / "run", **{**SETTINGS, "loss": "absolute_error"})
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    """Nor by another network; what goes on has the module of its run."""
    lipcompile.train(net(), data(), tmp_path, **SETTINGS)
    before = (tmp_path / "model.py").read_text()
    for other in (net(), net(9)):
        with pytest.raises(InputError, match="holds an earlier run"):
            lipcompile.train(other, data(), tmp_path, **SETTINGS)
    with pytest.raises(InputError, match="is another module"):
        lipcompile.train(net(9), data(), tmp_path, how={"resume": True}, **SETTINGS)
    assert lipcompile.train(net(), data(), tmp_path, how={"resume": True}, **SETTINGS).steps == 4
    assert (tmp_path / "model.py").read_text() == before
    assert read_ledger(tmp_path / "ledger.jsonl").charges.total() == 4


@pytest.mark.parametrize("option", [{"bounds": "clipp"}, {"clip_groups": "layer"}, {"clip_length": -1}])
def test_options_that_mean_nothing_are_refused(option: Any) -> None:
    with pytest.raises(InputError) as raised:
        lipcompile.private(net(), (4,), **option)
    assert [found.code for found in raised.value.diagnostics] == ["LIP005"]


def test_fix_takes_references_and_no_modules_in_memory(tmp_path: Path) -> None:
    outcome = lipcompile.fix(
        f"{__name__}:net", tmp_path / "f.onnx", example=(4,), loss="cross_entropy", bounds="clip"
    )
    assert outcome.reached
    assert (tmp_path / "f.onnx").is_file()
    with pytest.raises(InputError, match='batch_norm="group_norm"'):
        lipcompile.fix(net(), tmp_path / "f.onnx")  # type: ignore[arg-type]


PLANNED = """
model m {
    input x: tensor[6], norm <= 1
    dense(3)
    loss cross_entropy
}
train {
    sampling poisson(batch=6, dataset=24)
    noise    global, correlated(bands=4)
    budget   epsilon=5, delta=0.001, epochs=4
}
"""


def test_the_function_writes_what_the_command_writes(tmp_path: Path) -> None:
    """The `train` block is in the file as well: what correlates the noise, and the planned training."""
    source = tmp_path / "m.lip"
    source.write_text(PLANNED, encoding="utf-8")
    assert lipcompile.check(source).ok
    path = lipcompile.compile(source, tmp_path / "function.py")
    assert run(["compile", str(source), "-o", str(tmp_path / "command.py")]) == 0
    assert path.read_text(encoding="utf-8") == (tmp_path / "command.py").read_text(encoding="utf-8")
    assert "noise_strategy" in path.read_text(encoding="utf-8")


class Exported(nn.Module):
    """A layer that computes something else while torch exports it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x) * (2 if torch.compiler.is_exporting() else 1)
        return found


def test_an_import_is_compared_with_its_original(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="LIP320"):
        lipcompile.private(Exported(), [3], bounds="clip")
    path = tmp_path / "m.py"
    with pytest.raises(InputError, match="LIP320"):
        lipcompile.compile(Exported(), path, example=[3], loss="cross_entropy", bounds="clip")
    assert not path.exists()
    lipcompile.private(Exported(), [3], bounds="clip", verify_import=False)


BLOCK = """model m {
    input x: tensor[4], norm <= 2
    dense(8, clip=automatic) tanh dense(2, clip=automatic)
    loss cross_entropy
}
train {
    neighbours replace_one
    sampling fixed_size(dataset=40, batch=8)
    noise global
    budget epsilon=2, delta=1e-3, epochs=2
    optimizer sgd(lr=0.25, momentum=0.5)
    schedule linear, average=0.5
}"""


@pytest.mark.filterwarnings("ignore::lipcompile_torch.train.engine.SeededWarning")
@pytest.mark.parametrize("how", [{}, {"neighbours": "add_remove", "sampling": "poisson", "schedule": "cosine"}])
def test_a_train_block_holds_as_on_the_command_line(
    how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.lip").write_text(BLOCK)
    x, y, *test = data()
    np.savez("data.npz", x_train=x, y_train=y, x_test=test[0], y_test=test[1])
    options = [word for name, value in how.items() for word in (f"--{name}", value)]
    torch.manual_seed(0)
    run(["train", "m.lip", "--data", "data.npz", "--output", "command", "--seed", "1", *options])
    torch.manual_seed(0)
    lipcompile.train("m.lip", (x, y, *test), "call", epsilon=2, delta=1e-3, how={"seed": 1, **how})
    ledgers = [read_ledger(Path(folder, "ledger.jsonl")) for folder in ("command", "call")]
    assert {ledger.relation.value for ledger in ledgers} == {how.get("neighbours", "replace_one")}
    assert ledgers[0].charges == ledgers[1].charges
    states = [torch.load(f"{folder}/checkpoint.pt")["states"]["module"] for folder in ("command", "call")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0].keys() | states[1].keys())


def test_a_sampling_of_the_block_goes_with_the_noise_that_is_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "m.lip"
    source.write_text(BLOCK)
    with pytest.raises(InputError, match="`sampling fixed_size` does not go with `noise blt`"):
        lipcompile.train(
            str(source), data(), tmp_path / "run", epsilon=2, delta=1e-3, how={"correlation": {"kind": "blt"}}
        )
    assert not (tmp_path / "run").exists()


def test_a_batch_in_the_shape_of_an_example_is_named() -> None:
    with pytest.raises(InputError, match=r"no batch, so \(8,\) and not \(1, 8\)"):
        lipcompile.private(nn.Linear(8, 3), (1, 8), loss="cross_entropy")
