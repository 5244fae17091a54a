"""`lipcompile new`, and `lipcompile train` of a table."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lipcompile.cli.shared import tables
from lipcompile.cli.shared.tables import Parts
from lipcompile.tables.schema import Boolean, Category, Number
from lipcompile.tables.schema_file import load
from tests.cli.commands import run

Capture = pytest.CaptureFixture[str]
SECRET = "secret-4711"
ROWS = 50
TRAIN = "train people.csv --epsilon 1 --target income"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a table of people whose income follows from their number."""
    monkeypatch.chdir(tmp_path)
    write("people.csv", range(ROWS))


Learned = list[tuple[Parts, dict[str, Any]]]


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> Learned:
    """A learner that says what it was given."""
    given = []

    def fit(parts: Parts, output: Path | None, **options: Any) -> tuple[str, Any, dict[str, Path]]:
        given.append((parts, {"output": output, **options}))
        budget, private = SimpleNamespace(delta=1e-5), options["seed"] is None
        fitted = SimpleNamespace(epsilon=0.99991, budget=budget, private=private, searched=None)
        return f"test of a {parts.schema.task}", fitted, {"model": Path("run/model.pkl")}

    monkeypatch.setattr(tables, "fit", fit)
    return given


def write(name: str, numbers: Any, income: str = "low high top") -> None:
    incomes = income.split()
    rows = [f"{n},{SECRET} {n % 2},yes,{incomes[n % len(incomes)]}\n" for n in numbers]
    Path(name).write_text("age,job,member,income\n" + "".join(rows))


def refused(command: str, capsys: Capture) -> str:
    """Return what is said to a command that is refused; it quotes no row."""
    capsys.readouterr()
    assert run(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "4711" not in err
    return err


# new


def test_a_schema_is_written_where_train_finds_it(capsys: Capture, learner: Learned) -> None:
    assert run("new people.csv --target income") == 0
    out, err = capsys.readouterr()
    assert out.startswith("people.schema.toml: 3 columns, 1 of them without a range.")
    assert "the privacy budget does not cover that" in out
    assert "4711" not in out + err + Path("people.schema.toml").read_text()
    assert load(Path("people.schema.toml")).columns == (Number("age"), Category("job"), Boolean("member"))
    assert run(TRAIN) == 0
    assert "schema people.schema.toml" in capsys.readouterr().err
    assert len(learner) == 1


def test_a_first_row_in_place_of_names_is_said(capsys: Capture, learner: Learned) -> None:
    Path("people.csv").write_text("".join(f"{n},{n + 5000},{'yes' if n % 2 else 'no'}\n" for n in range(ROWS)))
    assert run("train people.csv --epsilon 1 --target no --output run") == 0
    assert run("new people.csv --target no") == 0
    assert len(learner) == 1
    said = "names of columns look like values"
    assert capsys.readouterr().err.lower().count(said) == 2
    assert all(said in Path(kept).read_text().lower() for kept in ("run/schema.toml", "people.schema.toml"))


def test_what_is_public_is_written_down(capsys: Capture) -> None:
    assert run("new people.csv --target income --public --output own.toml") == 0
    assert "declared public" in capsys.readouterr().out
    found = load(Path("own.toml"))
    assert found.columns[0] == Number("age", 0.0, 49.0)
    assert found.classes == ("high", "low", "top")


def test_a_schema_that_somebody_filled_in_is_not_written_over(capsys: Capture) -> None:
    Path("people.schema.toml").write_text("mine")
    assert "exists" in refused("new people.csv --target income", capsys)
    assert Path("people.schema.toml").read_text() == "mine"


def test_new_takes_tables_alone(capsys: Capture) -> None:
    assert "LIP410" in refused("new model.lip", capsys)


# train


@pytest.mark.usefixtures("learner")
def test_a_delta_that_protects_nobody_is_said(capsys: Capture) -> None:
    """Of 50 rows 40 are trained on, and 0.025 is one of 40."""
    assert run(f"{TRAIN} --delta 0.025") == 0
    assert "δ = 0.025 is at least 1 / 40 examples" in capsys.readouterr().err
    assert run(f"{TRAIN} --delta 0.024") == 0
    assert "examples" not in capsys.readouterr().err


def test_a_table_is_trained_in_one_line(capsys: Capture, learner: Learned) -> None:
    assert run(f"{TRAIN} --delta 1e-6 --output run/first") == 0
    ((parts, options),) = learner
    assert options == {
        "epsilon": 1.0,
        "delta": 1e-6,
        "search": False,
        "seed": None,
        "output": Path("run/first"),
    }
    assert parts.schema.classes == ("high", "low", "top")
    ages = np.concatenate([parts.train.x[:, 0], parts.test.x[:, 0]])
    assert (len(parts.train.x), len(parts.test.x)) == (40, 10)
    assert sorted(ages) == list(range(ROWS))
    for part in (parts.train, parts.test):
        assert part.y is not None
        assert [*part.y] == [["low", "high", "top"][int(age) % 3] for age in part.x[:, 0]]
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "test of a classification on the held-out rows; these figures are exact, so they are not private",
        "ε = 1.0000 at δ = 1e-05",
        "model       run/model.pkl",
        "schema      run/first/schema.toml",
    ]
    assert "4711" not in out + err


def test_values_outside_of_a_public_range_are_reported(capsys: Capture, learner: Learned) -> None:
    """Ages are 0 to 49, and the first 40 rows that are drawn train: some 20 % of them are above 39."""
    assert run("new people.csv --target income") == 0
    schema = Path("people.schema.toml")
    schema.write_text(
        schema.read_text().replace('age = { kind = "number" }', 'age = { kind = "number", low = 0, high = 39 }')
    )
    assert run(TRAIN) == 0
    ((parts, _),) = learner
    share = (parts.train.x[:, 0] > 39).mean()
    assert f"{share:.1%} of the values of `age` are outside of its public range" in capsys.readouterr().err


def test_what_no_budget_covers_is_said_and_stands_in_the_schema_that_is_kept(
    capsys: Capture, learner: Learned
) -> None:
    assert run(f"{TRAIN} --output run") == 0
    said = ["kinds of columns were read from the rows", "classes were read from the rows"]
    err, kept = capsys.readouterr().err.lower(), Path("run/schema.toml").read_text().lower()
    assert err.count("warning[lip415]") == 2
    assert all(one in err and one in kept for one in said)
    assert load(Path("run/schema.toml")) == learner[0][0].schema


def test_with_a_schema_nothing_is_read_from_the_rows(capsys: Capture, learner: Learned) -> None:
    Path("own.toml").write_text(
        'target = "income"\nclasses = ["low", "high", "top", "none"]\n'
        '[columns]\nage = { kind = "number", low = 0, high = 100 }\n'
    )
    assert run("train people.csv --epsilon 1 --schema own.toml --output run") == 0
    assert "LIP415" not in capsys.readouterr().err
    assert "no budget covers" not in Path("run/schema.toml").read_text().partition("target")[0]
    ((parts, _),) = learner
    assert parts.train.names == ("age",)
    assert parts.schema.classes == ("low", "high", "top", "none")


def test_a_number_is_regressed(capsys: Capture, learner: Learned) -> None:
    assert run("train people.csv --epsilon 1 --target age") == 0
    ((parts, options),) = learner
    assert parts.schema.task == "regression"
    assert parts.train.y is not None
    assert parts.train.y.dtype == np.float64
    assert options["output"] is None
    out = capsys.readouterr().out
    assert out.startswith("test of a regression ")
    assert "schema" not in out


def test_other_rows_may_be_tested_on(capsys: Capture, learner: Learned) -> None:
    write("more.csv", range(100, 107))
    Path("more.csv.gz").write_bytes(gzip.compress(Path("more.csv").read_bytes()))
    assert run(f"{TRAIN} --test more.csv.gz --seed 3") == 0
    ((parts, options),) = learner
    assert (len(parts.train.x), parts.test.x[:, 0].tolist()) == (ROWS, [*range(100, 107)])
    assert options["seed"] == 3
    assert "NOT PRIVATE" in capsys.readouterr().out


REFUSED = {
    "train people.csv --target income": "error[LIP404]: --epsilon is needed",
    "train people.csv --epsilon 0 --target income": "error[LIP401]: epsilon = 0 is not a positive number",
    f"{TRAIN} --delta 1": "error[LIP401]: delta = 1 is not strictly between 0 and 1",
    "train people.csv --epsilon 1": "has no target column",
    "train people.csv --epsilon 1 --target Income": "it has `age`, `job`, `member`, `income`",
    "train missing.csv --epsilon 1 --target income": "No such file",
    "train people.csv --epsilon 1 --target member": "has the same class in all rows",
    f"{TRAIN} --schema missing.toml": "`missing.toml` cannot be read",
    f"{TRAIN} --test missing.csv": "No such file",
    f"{TRAIN} --test other.csv": "has a class that the schema does not have",
    f"{TRAIN} --lr 0.1": "--lr is for networks",
    f"{TRAIN} --data data.npz": "--data is for networks",
    f"{TRAIN} --allow-vacuous": "--allow-vacuous is for networks",
    f"{TRAIN} --noise-weight a=1": "--noise-weight is for networks",
    f"{TRAIN} --input-norm 1": "options of networks",
    f"{TRAIN} --output used": "holds an earlier run",
    f"{TRAIN} --output people.csv": "is a file",
    "train empty.csv --epsilon 1 --target income": "is empty",
    "train names.csv --epsilon 1 --target income": "has no rows",
    "train gaps.csv --epsilon 1 --target income": "is missing in some rows",
    "train one.csv --epsilon 1 --target income --schema open.toml": "has one row",
    f"{TRAIN} --schema numbers.toml": "column `job` contains a value that is not a number",
    f"{TRAIN} --schema other.toml": "`other.toml` has another target than `income`",
    f"{TRAIN} --schema bare.toml": "`bare.toml` has no target `income` = help: write it into the schema, "
    '`target = "…"` above [columns], and remove the line of that column',
    f"{TRAIN} --schema wrong.toml": "did you mean `low`?",
    "train model.lip --epsilon 1": "Missing option '--data'",
    "train model.lip --data data.npz": "Missing option '--output'",
    "train model.lip --data data.npz --output run --target income": "--target is for tables",
}


@pytest.mark.parametrize("command", REFUSED)
def test_wrong_input_is_refused_before_anything_is_spent(command: str, capsys: Capture, learner: Learned) -> None:
    Path("used").mkdir()
    Path("used/ledger.jsonl").touch()
    Path("empty.csv").touch()
    write("names.csv", [])
    write("other.csv", range(3), income=SECRET)
    write("gaps.csv", range(9), income="low high ?")
    write("one.csv", [1])
    start = 'target = "income"\nclasses = ["low", "high", "top"]\n[columns]\n'
    Path("open.toml").write_text(start + 'age = { kind = "number" }\n')
    Path("numbers.toml").write_text(start + 'job = { kind = "number" }\n')
    Path("other.toml").write_text('target = "age"\n[columns]\njob = { kind = "category" }\n')
    Path("bare.toml").write_text('[columns]\nincome = { kind = "category" }\n')
    Path("wrong.toml").write_text(start + 'age = { kind = "number", lowe = 0 }\n')
    assert REFUSED[command] in " ".join(refused(command, capsys).split())
    assert learner == []
    assert not Path("run").exists()


def test_a_schema_that_is_wrong_is_shown(capsys: Capture) -> None:
    Path("wrong.toml").write_text('[columns]\nage = { kind = "number", low = 3, high = 2 }\n')
    said = refused(f"{TRAIN} --schema wrong.toml", capsys)
    assert "wrong.toml:2:1" in said
    assert "^^^" in said


def test_columns_that_are_ignored_are_told_how_dates_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Years of two digits have no one meaning."""
    rows = "".join(f"{age};{1 + age % 28}/5/{10 + age // 4};{'yes' if age % 2 else 'no'}\n" for age in range(300))
    (tmp_path / "people.csv").write_text(f"age;joined;member\n{rows}")
    assert run(f"train {tmp_path / 'people.csv'} --target member --epsilon 1") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "`joined`: ignored" in said
    reason = "dates are read as 2020-01-31, or as 31/01/2020 if no other order fits, with years of four digits"
    assert reason in said
    assert run(f"new {tmp_path / 'people.csv'} --target member") == 0
    said = capsys.readouterr().out
    assert "\n`joined`: ignored: " in said
    assert reason in said
