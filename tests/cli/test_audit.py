"""`lipcompile audit`: it attains what can be attained, and finds a wrong bound."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lipcompile_torch import LipschitzModule
from lipcompile_torch.audit.moves import Domain, clip_convolution
from lipcompile_torch.audit.points import Admissible, Look, Point, Terrain, _identity
from lipcompile_torch.audit.search import Attained, AuditConfig, _Ascent, audit
from lipcompile_torch.certify import constraints, operators

from tests.cli.commands import run
from tests.nights import by_day

pytestmark = pytest.mark.usefixtures("empty_folder")
Capture = pytest.CaptureFixture[str]

STEEP = "loss cross_entropy(temperature=4)"
MLP = f"input x: tensor[6], norm <= 1; dense(8); groupsort(2); dense(3); {STEEP}"

# Networks, and the share of the whole gradient's bound that must be attained. Lower ones are of what cannot be
# attained at the border of an image: some taps read zeros there.
VECTOR, IMAGE, SEQUENCE = (f"input x: tensor[{shape}], norm <= 1" for shape in ("6", "1, 8, 8", "2, 9"))
NETWORKS = {
    "dense": (f"{VECTOR}; dense(8); groupsort(2); dense(8); groupsort(2); dense(3); {STEEP}", 0.95),
    "biases": (f"{VECTOR}; dense(8, bias=0.5); relu; dense(3, bias=2); {STEEP}", 0.95),
    "residual": (f"{VECTOR}; residual(add) {{ dense(6); groupsort(2) }}; dense(3); {STEEP}", 0.95),
    "kernels": (f"{IMAGE}; conv2d(4, kernel=3, padding=1); l2_pool(2); flatten; dense(3); {STEEP}", 0.85),
    "strides": (f"{IMAGE}; conv2d(4, kernel=2, stride=2); relu; flatten; dense(3); {STEEP}", 0.95),
    "groups": (
        f"{SEQUENCE}; conv1d(4, kernel=3, groups=2, constraint=frobenius(1)); flatten; dense(3); {STEEP}",
        0.85,
    ),
    "tokens": (f"input x: tokens[5]; embedding(7, 4); dense(4); relu; flatten; dense(3); {STEEP}", 0.95),
    "dropout": (f"{VECTOR}; dense(8); dropout(0.5); groupsort(2); dense(3, constraint=orthogonal); {STEEP}", 0.95),
    "clipped": (f"{VECTOR}; dense(8); dense(3); clip_gradient(0.25); loss cross_entropy", 0.95),
    "one logit": (f"{VECTOR}; dense(8); groupsort(2); dense(1); loss bce", 0.95),
    "signs": (f"{VECTOR}; dense(8); groupsort(2); dense(1); loss hinge", 0.95),
    "vectors": (f"{VECTOR}; dense(8); groupsort(2); dense(3); loss squared_error(2)", 0.95),
    "pixels": ("input x: tensor[2, 1, 3], norm <= 9; conv2d(3, kernel=1); loss pixel_cross_entropy", 0.9),
    "masks": ("input x: tensor[2, 1, 3], norm <= 9; conv2d(1, kernel=1); loss multilabel_bce", 0.8),
    "rnn": ("input x: tensor[1, 3], norm <= 2; rnn(4, bias=0.5); dense(1); loss kr", 0.9),
    "gru": ("input x: tensor[1, 3], norm <= 2; gru(4, bias=0.5); dense(1); loss kr", 0.7),
    "lstm": ("input x: tensor[1, 3], norm <= 2; lstm(4, bias=0.5); dense(1); loss kr", 0.5),
    "frozen": (f"{VECTOR}; frozen {{ dense(8) }}; groupsort(2); dense(1); loss kr", 0.95),
}


def write(body: str) -> None:
    Path("model.lip").write_text("model m {\n" + body.replace("; ", "\n") + "\n}\n")


def audited(body: str, capsys: Capture, options: str = "--restarts 1 --steps 25") -> Any:
    """Audit a network; whatever it attains, no bound may be exceeded."""
    write(body)
    assert run(f"audit model.lip {options} --format json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", by_day({*NETWORKS} - {"gru"}, NETWORKS))
def test_what_can_be_attained_is(name: str, capsys: Capture) -> None:
    body, least = NETWORKS[name]
    found = audited(body, capsys)
    assert least <= found["total"]["ratio"] <= 1 + 1e-9
    assert found["ok"]


def test_json_has_stable_keys(capsys: Capture) -> None:
    found = audited(MLP, capsys)
    assert list(found) == ["schema", "model", "seed", "ok", "parameters", "total"]
    assert found["schema"] == "lipcompile.audit/1"
    assert [list(row) for row in found["parameters"]] == [["name", "claimed", "attained", "ratio", "exceeded"]] * 2
    assert [row["name"] for row in found["parameters"]] == ["dense.weight", "dense_2.weight"]
    assert list(found["total"]) == ["claimed", "attained", "ratio", "exceeded"]
    assert all(row["ratio"] == row["attained"] / row["claimed"] for row in found["parameters"])


def test_a_seed_repeats_an_audit(capsys: Capture) -> None:
    options = "--restarts 1 --steps 5 --seed"
    first, again, other = (audited(MLP, capsys, f"{options} {seed}") for seed in (1, 1, 2))
    assert first == again
    assert first["total"] != other["total"]


def test_a_wrong_bound_is_exceeded(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The bound of one parameter, too small by a tenth."""
    true = LipschitzModule.gradient_bounds

    def shrunk(module: LipschitzModule) -> dict[str, float]:
        bounds = true(module)
        return {**bounds, "dense_2.weight": 0.9 * bounds["dense_2.weight"]}

    monkeypatch.setattr(LipschitzModule, "gradient_bounds", shrunk)
    write(MLP)
    assert run("audit model.lip --restarts 1 --steps 25") == 1
    out = capsys.readouterr().out
    assert "exceeded: dense_2.weight" in out
    assert "This is a bug in lipcompile. Please report it." in out
    assert run("audit model.lip --restarts 1 --steps 25 --format json") == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert [row["exceeded"] for row in found["parameters"]] == [False, True]


def test_the_table_says_what_the_ratios_mean(capsys: Capture) -> None:
    write(MLP)
    assert run("audit model.lip --restarts 1 --steps 25") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["parameter", "claimed", "attained", "ratio"]
    assert [line.split()[0] for line in lines[1:4]] == ["dense.weight", "dense_2.weight", "whole"]
    assert "no bound was exceeded" in out
    assert "The least tight bound is that of" in out
    assert err == ""


@pytest.mark.parametrize(
    ("body", "options", "code", "said"),
    [
        (MLP, "--restarts 0", 2, "--restarts"),
        (MLP.replace(STEEP, ""), "", 2, "--loss cross_entropy"),
        (MLP.replace(", norm <= 1", ""), "", 2, "--input-norm"),
        (MLP.replace("groupsort(2)", "batch_norm"), "", 1, "batch_norm"),
        (MLP.replace(STEEP, "loss bce"), "", 1, "LIP211"),
    ],
)
def test_what_cannot_be_audited_is_refused(body: str, options: str, code: int, said: str, capsys: Capture) -> None:
    write(body)
    assert run(f"audit model.lip {options}") == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_a_module_in_single_precision_is_refused() -> None:
    class Nothing(LipschitzModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def per_example_loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError

    with pytest.raises(ValueError, match="float64"):
        audit(Nothing(), Admissible(), AuditConfig(), None)  # type: ignore[arg-type]


def test_a_claim_is_refuted_by_more_than_rounding() -> None:
    """1e-9 in float64."""
    assert [Attained(2.0, 2 * (1 + excess)).exceeded for excess in (0.0, 9e-10, 1.1e-9)] == [False, False, True]


def test_an_ascent_goes_along_the_slope_and_stays_in_the_ball() -> None:
    """From (3, 4)/5 a step of 1/5 on the first axis leads towards (4, 4); a target of norm up to 3 goes 3/2 up."""
    module: Any = SimpleNamespace(gradient_bounds=dict, input_shape=(2,), input_norm=5.0, named_modules=dict)
    terrain = Terrain(module, Admissible("vector", target_norm=3.0), torch.Generator())
    x, target = torch.tensor([[3.0, 4.0]]).double(), torch.tensor([[0.5]]).double()
    slopes = {"input": torch.tensor([[7.0, 0.0]]).double(), "target": torch.tensor([[4.0]]).double()}
    end = terrain.moved(Point(x, target, {}), slopes, {"input": 0.2, "target": 0.5})
    torch.testing.assert_close(end.x, 5 * torch.tensor([[4.0, 4.0]]).double() / math.sqrt(32))
    assert float(end.target) == pytest.approx(2.0)  # 0.5 + 0.5·3
    for entries in (1, 10, 1000):
        x = terrain.bounded_input(torch.rand(1, entries, dtype=torch.float64))
        assert float(x.norm()) <= 5 * (1 - 1e-12 - entries * 2.0**-51)


def test_blocks_move_in_the_order_of_the_model() -> None:
    """In one that each process draws for its sets, the same seed would lead elsewhere."""
    names = [f"block{place}" for place in range(20)]
    level: Any = SimpleNamespace(moved=lambda point, *_: point, value=lambda *_: 0.0)
    ascent, x = _Ascent(level, names), torch.ones(1, 1)
    ascent.step(Point(x, x, {}), Look(1.0, dict.fromkeys(names, x), {}, x))
    assert list(ascent.sizes) == names


def test_a_free_weight_does_not_run_away() -> None:
    domain, weight = Domain(constraints.Free(), operators.Dense()), torch.eye(4, 9, dtype=torch.float64)
    for _ in range(200):
        weight = domain.step(weight, weight + 1, 64.0)
    assert float(weight.norm()) == pytest.approx(8 * 2, rel=1e-12)


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)])
def test_clipping_leaves_small_kernels_alone_and_brings_large_ones_near_the_ball(stride: tuple[int, int]) -> None:
    geometry = operators.Convolution((3, 3), (9, 9), 9, 9, stride, ((1, 1), (1, 1)), (1, 1), groups=2)
    kernel = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small = 0.9 * kernel / geometry.norm(kernel).bound
    torch.testing.assert_close(clip_convolution(small, geometry), small, rtol=0, atol=1e-6)
    assert geometry.norm(5 * small).bound == pytest.approx(4.5)
    assert geometry.norm(clip_convolution(5 * small, geometry)).bound < 1.3


SETS: dict[str, tuple[constraints.Constraint, operators.Operator]] = {
    "spectral": (constraints.Spectral(2.0), operators.Dense()),
    "frobenius": (constraints.Frobenius(2.0), operators.Dense()),
    "box": (constraints.Box(2.0), operators.Entries()),
    "rows": (constraints.RowBalls(2.0), operators.Rows()),
    "ball": (constraints.Ball(2.0), operators.Translation()),
}


@pytest.mark.parametrize("name", SETS)
def test_a_long_step_ends_where_the_slope_is_largest_in_the_set(name: str) -> None:
    """The support function of each set, from its definition."""
    slope = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    most = {
        "spectral": float(torch.linalg.matrix_norm(slope, "nuc")),
        "frobenius": float(slope.norm()),
        "box": float(slope.abs().sum()),
        "rows": float(slope.norm(dim=1).sum()),
        "ball": float(slope.norm()),
    }[name]
    end = Domain(*SETS[name]).step(torch.zeros_like(slope), slope, 1e4)
    assert float((end * slope).sum()) == pytest.approx(2 * most, rel=1e-6)
    again = Domain(*SETS[name]).constraint.project(end, SETS[name][1])
    torch.testing.assert_close(again, end, rtol=0, atol=1e-6)


def test_what_is_no_convolution_starts_with_its_middle_taps() -> None:
    """Angles of pairs may have as many axes as a kernel: entry i is handed on to entry i, in the middle."""
    found = _identity((3, 3, 5, 4), torch.zeros(()), operators.Entries())
    assert found.nonzero().tolist() == [[i, i, 2, 2] for i in range(3)]
