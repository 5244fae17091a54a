"""`--preset images`: one command from images to a model; its plan as .lip text, by public facts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lipcompile.cli.shared.presets import Facts, public_delta, text_of
from lipcompile.pipeline import check
from tests.cli.commands import run
from tests.nights import by_day

pytestmark = pytest.mark.usefixtures("empty_folder")
Capture = pytest.CaptureFixture[str]


def images(*shape: int, count: int = 60, last: bool = False, **changes: Any) -> None:
    """Write images of two classes, told apart by whether their stripes lie or stand."""
    source = np.random.default_rng(0)
    y = np.arange(count) % 2
    stripes = np.sin(np.arange(shape[-2])[:, None] * 1.5 + np.zeros(shape[-1]))
    tilted = np.sin(np.arange(shape[-1]) * 1.5 + np.zeros((shape[-2], 1)))
    x = np.where(y.reshape(-1, *[1] * len(shape)) == 1, stripes, tilted) * 60 + 128
    x = np.clip(x + source.normal(0, 10, (count, *shape)), 0, 255).astype(np.uint8)
    x = np.moveaxis(x, 1, -1) if last else x
    arrays = {"x_train": x, "y_train": y, "x_test": x[:20], "y_test": y[:20]}
    np.savez("data.npz", **{**arrays, **changes})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "last"), by_day({0, 1}, [((12, 9), False), ((1, 9, 8), False), ((3, 10, 12), True)])
)
def test_one_command_trains_and_its_model_trains_again(
    shape: tuple[int, ...], last: bool, capsys: Capture
) -> None:
    images(*shape, last=last)
    assert run("train data.npz --preset images --epsilon 50 --accountant rdp --output run") == 0
    out, err = capsys.readouterr()
    assert "wrote run/model.lip" in err
    assert float(out.split("test accuracy ")[1].split("%")[0]) > 80
    assert "δ = 0.01" in out
    assert run("train run/model.lip --data data.npz --accountant rdp --output again") == 0
    layer = "MirroredScattering2d" if last else "WhitenedScattering2d"
    assert Path("run/model.py").read_text().count(layer) == 1
    assert run("verify run/model.py") == 0
    assert run("new data.npz --preset images --epsilon 50 --output new.lip") == 0
    assert Path("new.lip").read_text() == Path("run/model.lip").read_text()


def test_a_folder_of_images_is_trained_on_as_their_arrays_are() -> None:
    images(12, 9)
    data = np.load("data.npz")
    for part in ("train", "test"):
        for number, (pixels, label) in enumerate(zip(data[f"x_{part}"], data[f"y_{part}"], strict=True)):
            folder = Path("images") / part / "ab"[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    assert run("new images --preset images --epsilon 5 --output folder.lip") == 0
    assert run("new data.npz --preset images --epsilon 5 --output arrays.lip") == 0
    assert Path("folder.lip").read_text() == Path("arrays.lip").read_text()
    assert run("train images --preset images --epsilon 50 --accountant rdp --output run") == 0


def test_photographs_of_different_sizes_get_the_shape_that_is_asked_for(capsys: Capture) -> None:
    source = np.random.default_rng(0)
    for number in range(40):
        pixels = source.integers(0, 256, (*source.integers(20, 60, 2), 3), dtype=np.uint8)
        folder = Path("photos") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    command = "new photos --preset images --epsilon 5 --output photos.lip"
    assert run(command) == 2
    assert "different sizes: give each one shape, such as --input-shape 3,32,32" in capsys.readouterr().err
    assert run(f"{command} --input-shape 3,16,16") == 0
    assert "tensor[3, 16, 16]" in Path("photos.lip").read_text()
    images(12, 9)
    assert run("train data.npz --preset images --epsilon 5 --input-shape 3,16,16 --output run") == 2
    assert "`data.npz` is none" in capsys.readouterr().err


def test_a_run_goes_on_with_the_same_command(capsys: Capture) -> None:
    images(12, 9)
    command = "train data.npz --preset images --epsilon 8 --accountant rdp --output run"
    assert run(command) == 0
    assert run(f"{command} --resume") == 0
    capsys.readouterr()
    assert run(f"{command.replace('8', '9')} --resume") == 2
    assert "LIP405" in capsys.readouterr().err


def test_the_plan_does_not_depend_on_training_examples_or_their_labels() -> None:
    images(12, 9)
    assert run("new data.npz --preset images --epsilon 1 --output one.lip") == 0
    images(12, 9, x_train=np.zeros((60, 12, 9), dtype=np.uint8), y_train=np.full(60, 7))
    assert run("new data.npz --preset images --epsilon 1 --output other.lip") == 0
    assert Path("one.lip").read_text() == Path("other.lip").read_text()


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "other channels": ({"x_train": np.zeros((60, 2, 9, 9))}, "LIP403", "no images of 1 or 3 channels"),
    "vectors": ({"x_train": np.zeros((60, 81))}, "LIP403", "no images"),
    "too small": ({"x_train": np.zeros((60, 7, 9))}, "LIP403", "resize them"),
    "too large": ({"x_train": np.zeros((60, 9, 129))}, "LIP403", "resize them"),
    "one class": ({"y_test": np.zeros(20, dtype=int)}, "LIP403", "two at least"),
    "numbers": ({"y_test": np.linspace(0, 1, 20)}, "LIP403", "no class numbers"),
    "no examples": ({"x_train": np.zeros((0, 9, 9))}, "LIP403", "do not fit"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_file_of_images_is_refused_and_leaves_nothing(case: str, capsys: Capture) -> None:
    changes, code, message = WRONG[case]
    images(12, 9, **changes)
    assert run("train data.npz --preset images --epsilon 1 --output run") == 2
    err = capsys.readouterr().err
    assert code in err
    assert message in err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train data.npz --preset images --output run", "--epsilon is needed"),
        ("train data.npz --preset images --epsilon 1", "--output"),
        ("train data.npz --preset images --epsilon 1 --output run --data data.npz", "leave --data out"),
        ("train missing.npz --preset images --epsilon 1 --output run", "LIP402"),
        ("train data.lip --preset images --epsilon 1 --output run", "neither a folder nor an .npz file"),
        ("new data.npz --preset images", "--epsilon is needed"),
    ],
)
def test_wrong_commands(command: str, message: str, capsys: Capture) -> None:
    images(12, 9)
    assert run(command) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_was_changed_is_not_written_over(capsys: Capture) -> None:
    images(12, 9)
    Path("data.lip").write_text("mine")
    assert run("new data.npz --preset images --epsilon 1") == 2
    assert "LIP005" in capsys.readouterr().err
    assert Path("data.lip").read_text() == "mine"


def test_delta_is_a_power_of_ten_below_one_over_the_examples() -> None:
    assert [public_delta(n) for n in (60_000, 50_000, 9, 10, 90, 91, 1000)] == [
        1e-5, 1e-5, 0.1, 0.01, 0.01, 1e-3, 1e-4
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 128), (3, 64, 64), (3, 128, 128)])
@pytest.mark.parametrize("examples", [10, 5_000, 60_000, 5_000_000])
def test_presets_are_accepted_models(shape: tuple[int, ...], examples: int, tmp_path: Path) -> None:
    path = tmp_path / "model.lip"
    path.write_text(text_of(Facts(shape, examples, 10), 3.0, public_delta(examples)))
    found = check(str(path))
    assert found.ok, found.diagnostics
    assert found.analysis is not None
    (bound,) = found.analysis.parameters.values()
    assert bound.value == pytest.approx(0.1, rel=1e-5)


def test_tuned_presets_are_those_of_the_table() -> None:
    """As docs/utility-images.md has them: 105 steps, and 120."""
    grey, colour = (
        text_of(Facts(*facts, 10), 3.0, 1e-5) for facts in (((1, 28, 28), 60_000), ((3, 32, 32), 50_000))
    )
    assert "batch=8192, dataset=60000" in grey
    assert "epochs=15" in grey
    assert "adam(lr=0.015)" in grey
    assert "whitened_scattering2d(81, source=strokes, scales=2, power=0.4)" in grey
    assert "epochs=20" in colour
    assert "sgd(lr=20, momentum=0.9)" in colour
    assert "mirrored_scattering2d(96, source=leaves, scales=2, power=0.3)" in colour
