"""`lipcompile predict` of a network: what its outputs mean for the loss that it was trained on."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cli.commands import run

Capture = pytest.CaptureFixture[str]
# One dense layer without bias, whose weights are the unit matrix: its outputs are the entries of the example.
UNIT = "model m {{ input x: tensor[{size}], norm <= 10\n dense({size}, bias=false)\n loss {loss} }}\n"
X = np.array([[1.0, 3.0], [2.0, -2.0]])


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


def predicted(loss: str, x: np.ndarray, capsys: Capture) -> list[list[str]]:
    """Return the lines of predictions of the unit matrix for examples [N, size]."""
    Path("m.lip").write_text(UNIT.format(size=x.shape[1], loss=loss))
    np.savez("new.npz", X=x)
    assert run("compile m.lip -o m.py") == 0
    torch.save({"dense.weight": torch.eye(x.shape[1])}, "m.pt")
    capsys.readouterr()
    assert run("predict m.py new.npz --weights m.pt") == 0
    return list(csv.reader(capsys.readouterr().out.splitlines()))


def test_classes_and_their_probabilities(capsys: Capture) -> None:
    """With temperature 0.5 the logits are half the entries: 1 / (1 + exp(±1)) and 1 / (1 + exp(±2))."""
    assert predicted("cross_entropy(temperature=0.5)", X, capsys) == [
        ["row", "prediction", "probability of 0", "probability of 1"],
        ["0", "1", "0.2689", "0.7311"],
        ["1", "0", "0.8808", "0.1192"],
    ]


@pytest.mark.parametrize(
    ("loss", "entries", "lines"),
    [
        ("multiclass_hinge", 2, [["row", "prediction"], ["0", "1"], ["1", "0"]]),
        ("hinge", 1, [["row", "prediction"], ["0", "1"], ["1", "-1"]]),
        ("bce", 1, [["row", "prediction", "probability of 1"], ["0", "1", "0.9526"], ["1", "0", "0.1192"]]),
        (
            "multilabel_bce",
            2,
            [
                ["row", "probability of 0", "probability of 1"],
                ["0", "0.7311", "0.9526"],
                ["1", "0.8808", "0.1192"],
            ],
        ),
        ("absolute_error", 2, [["row", "output 0", "output 1"], ["0", "1", "3"], ["1", "2", "-2"]]),
    ],
)
def test_what_outputs_mean_is_said_by_the_loss(
    loss: str, entries: int, lines: list[list[str]], capsys: Capture
) -> None:
    """1 / (1 + exp(-1)) = 0.7311, of 2 and 3 0.8808 and 0.9526; the last entries are taken."""
    assert predicted(loss, X[:, -entries:], capsys) == lines


def test_images_get_the_names_of_the_folders_that_were_trained_on(capsys: Capture) -> None:
    source = np.random.default_rng(0)
    for name, bright in (("day", slice(4)), ("night", slice(4, None))):  # the upper rows, or the lower
        Path("photos", name).mkdir(parents=True)
        for number in range(60):
            size = (*source.integers(9, 14, 2), 3)
            pixels = source.integers(0, 60, size, dtype=np.uint8)
            pixels[bright] += 190
            Image.fromarray(pixels).save(Path("photos", name, f"{number}.png"))
    Path("m.lip").write_text(
        "model m { input x: tensor[1, 8, 8], norm <= 8\n flatten dense(2) loss cross_entropy }\n"
    )
    assert run("train m.lip --data photos --epsilon 20 --delta 1e-2 --epochs 5 -o run --bounds clip") == 0
    assert json.loads(Path("run/classes.json").read_text()) == ["day", "night"]
    Path("photos/night/5.png").rename("new.png")
    capsys.readouterr()
    assert run("predict run new.png") == 0
    header, line = csv.reader(capsys.readouterr().out.splitlines())
    assert header == ["file", "prediction", "probability of day", "probability of night"]
    assert line[:2] == ["new.png", "night"]
    assert run("predict run photos -o found.csv") == 0
    assert len(Path("found.csv").read_text().splitlines()) == 1 + 119
    for damaged in ('["day", ', '{"0": "day", "1": "night"}', "[1, 0]", '"ab"'):
        Path("run/classes.json").write_text(damaged)
        assert run("predict run new.png") == 2
        assert "`run/classes.json` does not hold the names of classes" in capsys.readouterr().err


def test_what_cannot_be_predicted_is_refused(capsys: Capture) -> None:
    predicted("cross_entropy", X, capsys)
    assert run("predict m.py new.npz") == 2
    assert "no weights were given" in capsys.readouterr().err
    np.savez("other.npz", a=X, b=X)
    assert run("predict m.py other.npz --weights m.pt --output found.csv") == 2
    assert "name that of the inputs x" in capsys.readouterr().err
    assert not Path("found.csv").exists()
    assert run("predict new.npz new.npz --weights m.pt") == 2
    assert "those of a network" in capsys.readouterr().err
    assert run("predict m.py . --weights m.pt") == 2
    assert "has no images" in capsys.readouterr().err
    pixels = "model m { input x: tensor[3, 4, 4], norm <= 1\n conv2d(2, kernel=1)\n loss pixel_cross_entropy }\n"
    Path("m.lip").write_text(pixels)
    assert run("compile m.lip -o pixels.py") == 0
    torch.save({"conv2d.weight": torch.zeros(2, 3, 1, 1)}, "m.pt")
    assert run("predict pixels.py new.npz --weights m.pt") == 2
    assert "no line of a table" in capsys.readouterr().err
