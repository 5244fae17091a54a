"""`lipcompile train`, `tune` and `predict` of tables: from a file to a model, its page and its predictions."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from lipcompile_privacy.ledger import read_ledger
from lipcompile_torch.train.data import split_rows

from lipcompile.learn import fitting
from lipcompile.learn.table_model import load
from tests.cli.commands import run

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
SECRET = "secret-4711"
ROWS = 1500


@pytest.fixture(autouse=True)
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a table of every kind of column, and with missing values."""
    monkeypatch.chdir(tmp_path)
    source = np.random.default_rng(0)
    with Path("people.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "job", "joined", "site", "income"])
        for row in range(ROWS):
            age, job = int(source.integers(18, 90)), str(source.choice(["nurse", "coder, senior", SECRET]))
            income = "high" if age > 60 else "middle" if job == "nurse" else "low"
            shown = "" if row % 9 == 0 else age
            writer.writerow([shown, job, f"2020-0{1 + row % 9}-1{row % 10}", "main", income])


def test_one_command_makes_a_model_its_page_and_its_ledger(capsys: Capture) -> None:
    assert run("train people.csv --target income --epsilon 5 --output run") == 0
    out, err = capsys.readouterr()
    found = re.search(r"test accuracy ([\d.]+) %", out)
    assert found is not None
    assert float(found[1]) > 50  # the largest class has 42 %
    assert "ε = 4.99" in out
    assert err.count("LIP415") == 2  # kinds of columns, and classes
    assert {path.name for path in Path("run").iterdir()} == {
        "model.npz",
        "ledger.jsonl",
        "report.html",
        "schema.toml",
    }
    record = read_ledger("run/ledger.jsonl")
    assert record.dataset_size == 1200
    assert record.delta == 1e-5
    assert 4.9 < record.epsilon(1e-5) <= 5.0
    page = Path("run/report.html").read_text(encoding="utf-8")
    for said in (
        "income",
        "people.csv",
        "ranges of 2 columns",
        "stand out of the noise",
        "The kinds of columns were read",
        "The classes were read",
    ):
        assert said in page
    for text in (out, err, page, Path("run/schema.toml").read_text(encoding="utf-8")):
        assert SECRET not in text
    assert SECRET.encode() not in Path("run/model.npz").read_bytes()


def files_of(folder: str, out: str) -> dict[str, object]:
    """Return what a run says and keeps, but for what was released, and what is marked as not private."""
    page = Path(folder, "report.html").read_text(encoding="utf-8")
    for part in (
        r'<section id="quality">.*?</section>',
        r"<dt>Test accuracy</dt>.*?</dd>",
        r"<dt>Columns</dt>.*?</dd>",
        "<li>The standard error.*?</li>",
    ):
        page, count = re.subn(part, "", page, flags=re.DOTALL)
        assert count == 1
    lines = [json.loads(line) for line in Path(folder, "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    with np.load(Path(folder, "model.npz")) as model:
        arrays = dict(model)
    released = {"low", "high", "mean", "scale", "kept", "products", "weights", "start"}
    assert released < arrays.keys()
    return {
        "files": {path.name for path in Path(folder).iterdir()},
        "said": [
            line.replace(folder, "run") for line in out.splitlines() if "so they are not private" not in line
        ],
        "page": page,
        "schema": Path(folder, "schema.toml").read_text(encoding="utf-8"),
        "ledger": [{key: line[key] for key in line if key not in ("id", "time", "hash")} for line in lines],
        "model": {name: array.tolist() for name, array in arrays.items() if name not in released},
        "shapes": {name: (array.dtype, array.shape) for name, array in arrays.items()},
    }


def test_one_row_changes_what_was_released_and_nothing_else(capsys: Capture) -> None:
    """Two runs with one seed, on tables that differ in one row to train on."""
    rows = Path("people.csv").read_text(encoding="utf-8").splitlines()
    place = 1 + int(split_rows(ROWS)[0][17])
    found = []
    for folder, row in (("one", rows[place]), ("other", "1e30,nurse,1999-12-31,main,low")):
        rows[place] = row
        Path("people.csv").write_text("\n".join(rows), encoding="utf-8")
        assert run(f"train people.csv --target income --epsilon 5 --seed 1 --output {folder}") == 0
        out, err = capsys.readouterr()
        found.append({**files_of(folder, out), "errors": err})
    assert found[0] == found[1]
    weights = [np.load(Path(folder, "model.npz"))["weights"] for folder in ("one", "other")]
    assert not np.array_equal(*weights)


def test_predictions_are_written_as_a_table(capsys: Capture) -> None:
    assert run("train people.csv --target income --epsilon 5 --output run") == 0
    capsys.readouterr()
    assert run("predict run people.csv") == 0
    lines = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert lines[0] == ["income", "probability of high", "probability of low", "probability of middle"]
    assert len(lines) == ROWS + 1
    for label, *shares in lines[1:20]:
        assert sum(map(float, shares)) == pytest.approx(1.0, abs=3e-4)
        assert label == ["high", "low", "middle"][int(np.argmax([float(share) for share in shares]))]
    assert run("predict run/model.npz people.csv --output predicted.csv") == 0
    assert list(csv.reader(Path("predicted.csv").read_text(encoding="utf-8").splitlines())) == lines


def test_predicted_numbers_have_the_digits_of_float32(capsys: Capture) -> None:
    """Nine give each float32 back; a double has up to seventeen. Nine are off by 5·10⁻⁹ of the number at most."""
    with Path("prices.csv").open("w", encoding="utf-8") as file:
        file.write("size,price\n" + "".join(f"{row % 97},{3 * (row % 97) + 0.1}\n" for row in range(ROWS)))
    assert run("train prices.csv --target price --epsilon 5 --output run") == 0
    capsys.readouterr()
    assert run("predict run prices.csv") == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "price"
    model = load("run/model.npz")
    exact = model.predictions(model.encoded(Path("prices.csv")).x)
    assert max(len(re.sub(r"e.*|\D", "", line).lstrip("0")) for line in lines) <= 9
    assert np.array(lines, float) == pytest.approx(exact, rel=5e-9)


@pytest.mark.parametrize("what", ["nothing", "people.csv"])
def test_without_a_model_there_is_nothing_to_predict(what: str, capsys: Capture) -> None:
    assert run(f"predict {what} people.csv") == 2
    assert "LIP402" in capsys.readouterr().err


@pytest.mark.parametrize("least", [1.0, 1e9])
def test_tune_pays_for_search_and_model_with_one_budget(
    least: float, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_LEAST", least)
    assert run("tune people.csv --target income --epsilon 5 --output run") == 0
    out, err = capsys.readouterr()
    assert "ε = 4.99" in out
    assert ("no search was made" in err) == (least > 1)
    assert run("ledger run --delta 1e-5 --format json") == 0
    assert 4.9 < json.loads(capsys.readouterr().out)["accountants"]["pld"]["epsilon"] <= 5.0
    assert ("the search kept: " in out) == (least == 1)
    assert ("scores of the search" in Path("run/report.html").read_text(encoding="utf-8")) == (least == 1)


def test_tune_is_for_tables(capsys: Capture) -> None:
    assert run("tune model.lip --epsilon 1") == 2
    assert "LIP410" in capsys.readouterr().err


def test_a_number_is_learned_too(capsys: Capture) -> None:
    assert run("train people.csv --target age --epsilon 5 --output run") == 2  # it is missing in some rows
    assert "LIP414" in capsys.readouterr().err
    text = Path("people.csv").read_text(encoding="utf-8").replace("\n,", "\n50,")
    Path("people.csv").write_text(text, encoding="utf-8")
    assert run("train people.csv --target age --epsilon 5 --output run") == 0
    told = capsys.readouterr().out
    assert "test R² 0." in told
    assert " by the median alone)" in told
    assert "Test R²" in Path("run/report.html").read_text(encoding="utf-8")


def test_a_seed_is_said_on_the_page(capsys: Capture) -> None:
    assert run("train people.csv --target income --epsilon 5 --output run --seed 1") == 0
    assert "NOT PRIVATE" in capsys.readouterr().out
    assert "not private: a seed was fixed" in Path("run/report.html").read_text(encoding="utf-8")


def test_texts_are_learned_from_by_a_tokenizer_that_the_model_keeps(capsys: Capture) -> None:
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0, "old": 1, "young": 2}, "unk_token": "[UNK]"}
    Path("tokenizer.json").write_text(
        json.dumps({"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model})
    )
    with Path("notes.csv").open("w", encoding="utf-8") as file:
        file.write(
            "note,y\n" + "".join(f"{row} {SECRET} {('old', 'young')[row % 2]},{row % 2}\n" for row in range(ROWS))
        )
    assert run("train notes.csv --target y --epsilon 5 --tokenizer tokenizer.json --output run") == 0
    out, err = capsys.readouterr()
    assert float(out.split("test accuracy ")[1].split("%")[0]) > 95
    assert SECRET not in out + err + Path("run/schema.toml").read_text(encoding="utf-8")
    Path("tokenizer.json").unlink()
    Path("new.csv").write_text("note\nhe is old\nyoung and new\n")
    assert run("predict run new.csv") == 0
    assert [line[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["0", "1"]


def test_a_tokenizer_beside_a_schema_is_refused(capsys: Capture) -> None:
    assert run("new people.csv --target income") == 0
    assert run("train people.csv --epsilon 5 --tokenizer tokenizer.json") == 2
    assert "write it into people.schema.toml" in capsys.readouterr().err


@pytest.mark.parametrize("options", ["--epsilon -1", "--epsilon 1 --delta 2"])
def test_no_budget_is_refused_and_leaves_nothing(options: str, capsys: Capture) -> None:
    assert run(f"train people.csv --target income {options} --output run") == 2
    assert "LIP401" in capsys.readouterr().err
    assert not Path("run").exists()
