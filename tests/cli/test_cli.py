"""The command line: exit codes, streams, files, and what it imports."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import jsonschema
import numpy as np
import pytest

from lipcompile import pipeline
from lipcompile.cli import cli
from tests.cli.commands import run
from tests.nights import by_day

Capture = pytest.CaptureFixture[str]
SCHEMA = json.loads(files("lipcompile.reports").joinpath("report.schema.json").read_text(encoding="utf-8"))

MODEL = """
model m {
    input x: tensor[4], norm <= 1
    dense(8)
    groupsort(2)
    dense(2)
    loss cross_entropy(temperature=4)
}
"""
PLAN = """
train {
    sampling    poisson(batch=20, dataset=40)
    budget      epsilon=3, delta=1e-4, epochs=2
    optimizer   sgd(lr=0.1)
}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, a plan and data, to work in."""
    monkeypatch.chdir(tmp_path)
    Path("model.lip").write_text(MODEL)
    Path("planned.lip").write_text(MODEL + PLAN)
    np.savez("data.npz", **arrays())
    Path("people.csv").write_text("age,income\n31,low\n62,high\n")
    return tmp_path


def arrays(examples: int = 40) -> dict[str, Any]:
    """Two classes, told apart by the sign of the first entry."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((examples, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return {"x_train": x, "y_train": y, "x_test": x[:10], "y_test": y[:10]}


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# Exit codes


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("check model.lip", 0),
        ("check model.lip --loss bce", 1),
        ("check missing.lip", 2),
        ("check model.txt", 2),
        ("check model.lip --input-norm much", 2),
        ("check model.lip --set depth", 2),
        ("check model.lip --set a=1 --set a=2", 2),
        ("check model.lip --constraint cubic", 2),
        ("check", 2),
        ("check model.lip --no-such-option", 2),
        ("no-such-command", 2),
        ("explain LIP999", 2),
        ("compile model.lip", 2),
        ("compile model.lip -o .", 2),
        ("compile model.lip -o missing/model.py", 2),
        ("compile model.lip -o model.lip", 2),
        ("compile model.lip -o out.py --backend abacus", 2),
        ("compile model.lip -o out.py --loss bce", 1),
        ("budget --epsilon 1", 2),
        ("train model.lip --data data.npz --output run", 2),
        ("--version", 0),
        ("--help", 0),
    ],
)
def test_exit_codes(place: Path, capsys: Capture, command: str, code: int) -> None:
    before = listing(place)
    assert run(command) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    if code == 2:
        assert out == ""
        assert err
    assert listing(place) == before


@pytest.mark.usefixtures("place")
def test_an_unexpected_failure_is_one_message(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("lost\nin thought")

    monkeypatch.setattr(pipeline, "derive", broken)
    monkeypatch.delenv("LIPCOMPILE_DEBUG", raising=False)
    assert run("check model.lip") == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lipcompile failed unexpectedly: KeyError: 'lost\\nin thought'\n")
    assert "report it" in err
    assert "Traceback" not in err
    monkeypatch.setenv("LIPCOMPILE_DEBUG", "1")
    assert run("check model.lip") == 3
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.usefixtures("place")
def test_an_interrupt_is_quiet(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "derive", interrupted)
    assert run("check model.lip") == 130
    assert capsys.readouterr().err.strip() == ""


# check


@pytest.mark.usefixtures("place")
def test_json_goes_to_stdout_alone(capsys: Capture) -> None:
    assert run("check model.lip --loss bce --format json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["ok"] is False
    assert err == ""


@pytest.mark.usefixtures("place")
def test_unusable_input_leaves_stdout_empty(capsys: Capture) -> None:
    Path("cut.lip").write_text("model m {")
    assert run("check cut.lip") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error[LIP010]" in err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("check cut.lip", "LIP010"),
        ("check missing.lip", "LIP001"),
        (f"check {'long' * 99}.lip", "LIP001"),
        ("check latin.lip", "LIP010"),
        ("check text.onnx", "LIP002"),
        ("check model.lip --input-norm much", "LIP005"),
        ("check model.lip planned.lip", "LIP005"),
    ],
)
@pytest.mark.usefixtures("place")
def test_what_cannot_be_read_is_json_on_stdout_and_text_on_stderr(
    capsys: Capture, command: str, code: str
) -> None:
    Path("cut.lip").write_text("model m {")
    Path("text.onnx").write_text("no model")
    Path("latin.lip").write_bytes(b"model caf\xe9 {")
    assert run(f"{command} --format json") == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(found)
    assert (found["ok"], found["model"]) == (False, None)
    assert [one["code"] for one in found["diagnostics"]] == [code]
    assert f"error[{code}]" in err


@pytest.mark.usefixtures("place")
def test_several_models_are_checked_in_one_run_and_the_worst_counts(capsys: Capture) -> None:
    Path("wrong.lip").write_text(MODEL.replace("groupsort", "grupsort"))
    assert run("check model.lip planned.lip") == 0
    assert capsys.readouterr().out.count("accepted: m from") == 2
    assert run("check wrong.lip model.lip") == 1
    assert run("check missing.lip wrong.lip model.lip") == 2
    out, err = capsys.readouterr()
    assert "rejected: m from wrong.lip" in out
    assert "accepted: m from model.lip" in out
    assert "LIP001" in err


@pytest.mark.usefixtures("place")
def test_options_override_the_file(capsys: Capture) -> None:
    assert run("check model.lip --input-norm 1/2 --loss multiclass_hinge --freeze dense.* --format json") == 0
    found = json.loads(capsys.readouterr().out)
    bounds = [entry["gradient_bound"]["value"] for entry in found["parameters"]]
    assert bounds[0] == 0.0
    assert bounds[1] == pytest.approx(0.5 / 2**0.5)  # X_0/√K, two classes


# compile


@pytest.mark.usefixtures("place")
def test_compile_writes_a_module_that_imports(capsys: Capture) -> None:
    assert run("compile model.lip -o out.py") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "wrote out.py" in err
    program = "import out; print(sorted(out.Model().gradient_bounds()))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['dense.weight', 'dense_2.weight']"


@pytest.mark.usefixtures("place")
def test_compiled_bounds_may_follow_the_weights() -> None:
    for option, followed in (("", False), (" --follow-weights", True)):
        assert run(f"compile model.lip -o model.py{option}") == 0
        assert ("def gradient_bounds" in Path("model.py").read_text()) is followed


@pytest.mark.usefixtures("place")
def test_compile_leaves_the_old_file_if_the_model_is_rejected() -> None:
    Path("out.py").write_text("precious")
    assert run("compile model.lip -o out.py --loss bce") == 1
    assert Path("out.py").read_text() == "precious"


def test_compile_leaves_nothing_behind_if_writing_fails(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "out.py")

    before = listing(place)
    monkeypatch.setattr(Path, "replace", full)
    assert run("compile model.lip -o out.py") == 2
    assert listing(place) == before


# budget


def budget(capsys: Capture, command: str) -> dict[str, Any]:
    assert run(f"budget --format json {command}") == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_budget_can_be_solved_for_each_of_its_numbers(capsys: Capture) -> None:
    common = "--delta 1e-3 --sampling-rate 0.5"
    noise = budget(capsys, f"{common} --epsilon 2 --steps 4")
    assert noise["solved_for"] == "noise_multiplier"
    sigma = {name: answer["noise_multiplier"] for name, answer in noise["accountants"].items()}
    assert sigma["pld"] <= sigma["rdp"]
    for name, value in sigma.items():
        spent = budget(capsys, f"{common} --noise-multiplier {value!r} --steps 4")
        assert spent["accountants"][name]["epsilon"] == pytest.approx(2, rel=1e-3)
        assert spent["accountants"][name]["epsilon"] <= 2
        steps = budget(capsys, f"{common} --noise-multiplier {value!r} --epsilon 2")
        assert steps["accountants"][name]["steps"] == 4


@pytest.mark.usefixtures("place")
def test_a_plan_supplies_what_is_not_given(capsys: Capture) -> None:
    found = budget(capsys, "planned.lip")
    assert found["sampling_rate"] == 0.5
    assert found["solved_for"] == "noise_multiplier"
    assert found["accountants"]["rdp"]["steps"] == 4
    assert budget(capsys, "planned.lip --noise-multiplier 4")["solved_for"] == "epsilon"
    longer = budget(capsys, "planned.lip --noise-multiplier 4 --epochs 3")
    assert longer["accountants"]["rdp"]["steps"] == 6


def test_an_accountant_without_an_answer_says_why(capsys: Capture) -> None:
    common = "--delta 1e-5 --sampling-rate 0.5 --steps 10 --neighbours replace_one"
    found = budget(capsys, f"--noise-multiplier 4 {common}")["accountants"]
    assert "no theorem" in found["rdp"]["note"]
    assert found["rdp"]["epsilon"] is None
    assert found["pld"]["epsilon"] > 0


@pytest.mark.parametrize(
    "options",
    [
        "--epsilon nan --delta 1e-5 --sampling-rate 0.1 --steps 10",
        "--epsilon 1 --delta 2 --sampling-rate 0.1 --steps 10",
        "--epsilon 1 --delta 1e-5 --sampling-rate 1.5 --steps 10",
        "--epsilon 1 --delta 1e-5 --sampling-rate 0 --epochs 10",
        "--epsilon 1 --delta 1e-5 --batch-size 20 --dataset-size 10 --steps 10",
        "--noise-multiplier 0 --delta 1e-5 --sampling-rate 0.1 --steps 10",
        "--noise-multiplier 1 --epsilon 1 --steps 10 --delta 1e-5 --sampling-rate 0.1",
        "--epsilon 1 --delta 1e-5 --sampling-rate 0.1 --batch-size 10 --steps 10",
        "--epsilon 1 --delta 1e-5 --steps 10",
    ],
)
def test_a_budget_that_means_nothing_is_refused(capsys: Capture, options: str) -> None:
    assert run(f"budget {options}") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(r"error\[LIP40[14]\]", err)


# train

TRAIN = "train planned.lip --data data.npz --output run --accountant rdp"


def steps_in(run_folder: Path) -> int:
    lines = (run_folder / "ledger.jsonl").read_text().splitlines()
    return sum(json.loads(line)["kind"] == "step" for line in lines)


def test_training_to_a_budget(place: Path, capsys: Capture) -> None:
    assert run(TRAIN) == 0
    out, err = capsys.readouterr()
    assert listing(place / "run") == {"model.py", "checkpoint.pt", "ledger.jsonl"}
    spent = re.search(r"ε = ([\d.]+) at δ = 0.0001", out)
    assert spent
    assert float(spent[1]) <= 3
    clipped, *epochs = [line for line in err.splitlines() if "most frequent class" not in line]
    assert clipped.startswith("note: 92% of the examples")
    assert [line.split()[:2] for line in epochs] == [["epoch", "1/2"], ["epoch", "2/2"]]
    # A second run does not mix with the first; resuming a finished one spends nothing more.
    assert steps_in(place / "run") == 4
    assert run(TRAIN) == 2
    assert "error[LIP405]" in capsys.readouterr().err
    assert run(f"{TRAIN} --resume") == 0
    assert steps_in(place / "run") == 4
    assert run(f"{TRAIN} --resume --epochs 9") == 2
    assert run(f"{TRAIN} --resume --loss multiclass_hinge") == 2


@pytest.mark.usefixtures("place")
def test_a_seed_is_not_private_and_says_so(capsys: Capture) -> None:
    assert run(f"{TRAIN} --seed 1") == 0
    out, err = capsys.readouterr()
    assert "NOT PRIVATE" in out
    assert "warning:" in err


def corrupt(path: Path) -> None:
    path.write_bytes(b"no archive")


def other_shape(path: Path) -> None:
    np.savez(path, **{**arrays(), "x_train": np.zeros((40, 5), np.float32)})


def other_labels(path: Path) -> None:
    np.savez(path, **{**arrays(), "y_train": np.full(40, 7)})


def no_arrays(path: Path) -> None:
    np.savez(path, images=np.zeros(3))


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (corrupt, "LIP402"),
        (gone, "LIP402"),
        (other_shape, "LIP403"),
        (other_labels, "LIP403"),
        (no_arrays, "LIP403"),
    ],
)
def test_data_that_cannot_be_used(place: Path, capsys: Capture, damage: Callable[[Path], None], code: str) -> None:
    damage(place / "data.npz")
    before = listing(place)
    assert run(TRAIN) == 2
    assert f"error[{code}]" in capsys.readouterr().err
    assert listing(place) == before


@pytest.mark.usefixtures("place")
def test_signs_are_checked_before_anything_is_spent(capsys: Capture) -> None:
    Path("planned.lip").write_text(MODEL.replace("dense(2)", "dense(1)") + PLAN)
    assert run(f"{TRAIN} --loss hinge") == 2
    assert "error[LIP403]: targets must be -1 or 1" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--epsilon 1e-9 --delta 1e-9", "LIP401"),
        ("--epsilon -1", "LIP401"),
        ("--delta 0", "LIP401"),
        ("--neighbours replace_one", "LIP401"),
        ("--batch-size 41", "LIP404"),
        ("--lr 0", "LIP404"),
    ],
)
def test_settings_that_cannot_be_trained_with(place: Path, capsys: Capture, options: str, code: str) -> None:
    before = listing(place)
    assert run(f"{TRAIN} --output deep/down {options}") == 2
    assert f"error[{code}]" in capsys.readouterr().err
    assert listing(place) == before


@pytest.mark.usefixtures("place")
def test_somebody_elses_files_are_not_touched(capsys: Capture) -> None:
    Path("model.py").write_text("precious")
    assert run(f"{TRAIN} --output .") == 2
    assert "error[LIP405]" in capsys.readouterr().err
    assert Path("model.py").read_text() == "precious"


@pytest.mark.usefixtures("place")
def test_settings_that_mean_less_than_they_seem_are_pointed_out(capsys: Capture) -> None:
    Path("planned.lip").write_text(MODEL + PLAN.replace("dataset=40", "dataset=50"))
    assert run(f"{TRAIN} --delta 0.5 --epochs 1") == 0
    err = capsys.readouterr().err
    assert "made for 50 examples, the file holds 40" in err
    assert "at least 1 / 40 examples" in err


@pytest.mark.slow
def test_an_interrupted_run_goes_on(place: Path) -> None:
    command = [sys.executable, "-m", "lipcompile", *shlex.split(TRAIN), "--epochs", "4000"]
    before = signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # background jobs of shells have it ignored, and hand that on
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stderr
        assert process.stderr.readline().startswith("note: 92% of the examples")
        assert process.stderr.readline().startswith("epoch 1/")
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "--resume" in rest
    assert "Traceback" not in rest
    assert listing(place / "run") == {"model.py", "checkpoint.pt", "ledger.jsonl"}


# demo


@pytest.mark.slow
def test_the_demo_is_the_main_job_end_to_end(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracies of fourteen runs lie between 0.89 and 0.94; six points below their least is no accident."""
    monkeypatch.chdir(tmp_path)
    Path("lipcompile-demo").mkdir()
    assert run("demo") == 0
    out = capsys.readouterr().out
    accuracy, spent = re.search(r"test accuracy ([\d.]+) %", out), re.search(r"ε = ([\d.]+)", out)
    assert accuracy
    assert spent
    assert float(accuracy[1]) >= 83
    assert 2.9 <= float(spent[1]) <= 3
    assert listing(tmp_path / "lipcompile-demo-2") == {"model.py", "checkpoint.pt", "ledger.jsonl"}


# Help, imports, pipes


def examples() -> list[str]:
    found = []
    for name, command in cli.commands.items():
        text = command.get_help(click.Context(command, info_name=name))
        found += re.findall(r"^\s+lipcompile (.*)$", text, re.MULTILINE)
    return found


# What trains, audits or accounts for longest; tests of the commands run by day.
LONG = ("audit model.lip --privacy", "train mnist.npz", "budget --epsilon 2", "budget --noise-multiplier 1.1")
RUN = [example for example in examples() if not example.startswith(("demo", "lsp"))]


def test_every_command_shows_an_example() -> None:
    assert {example.split()[0] for example in examples()} == set(cli.commands)


@pytest.mark.slow
@pytest.mark.parametrize("example", by_day([example for example in RUN if not example.startswith(LONG)], RUN))
@pytest.mark.usefixtures("place")
def test_examples_of_the_help_run(example: str) -> None:
    if "model.onnx" in example:
        source = Path(__file__).parents[2] / "examples" / "mlp.onnx"
        Path("model.onnx").write_bytes(source.read_bytes())
    if example.startswith(("ledger", "certify", "export", "report run", "verify run")):
        assert run(TRAIN) == 0
    elif example.startswith("verify"):
        assert run("check model.lip --certificate model.json") == 0
        assert run("compile model.lip -o model.py") == 0
    if example.startswith("format --check"):
        assert run("format model.lip planned.lip") == 0
    if "public.npz" in example:
        np.savez("public.npz", **arrays())
    if "mnist.npz" in example:
        y = np.arange(240) % 2
        images = np.random.default_rng(0).integers(0, 9, (240, 8, 8)) + 200 * y[:, None, None]
        np.savez("mnist.npz", X=images.astype(np.uint8), y=y)
    if example.startswith("predict"):
        assert run("train people.csv --target income --epsilon 1 --output run") == 0
        Path("new_people.csv").write_bytes(Path("people.csv").read_bytes())
    assert run(example) == 0


def modules_after(*arguments: str) -> set[str]:
    program = (
        "import sys\nfrom lipcompile.__main__ import run\n"
        f"assert run({list(arguments)!r}) == 0\nprint(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stderr.split())


@pytest.mark.parametrize("arguments", [("check", "model.lip"), ("check", "model.lip", "--format", "json")])
@pytest.mark.usefixtures("place")
def test_check_loads_no_framework(arguments: tuple[str, ...]) -> None:
    banned = {"torch", "onnx", "onnxruntime", "dp_accounting", "lipcompile_torch", "jinja2", "matplotlib"}
    assert not modules_after(*arguments) & banned


@pytest.mark.parametrize(
    "arguments",
    [*((name, "--help") for name in ("check", "report", "train", "certify")), ("--help",), ("explain", "LIP101")],
)
def test_help_loads_next_to_nothing(arguments: tuple[str, ...]) -> None:
    assert not modules_after(*arguments) & {"torch", "onnx", "dp_accounting", "sympy", "numpy"}


@pytest.mark.usefixtures("place")
def test_budget_loads_no_torch() -> None:
    assert "torch" not in modules_after("budget", "planned.lip", "--noise-multiplier", "4")


@pytest.mark.parametrize(
    "arguments", [("check", "model.lip"), ("check", "model.lip", "--format", "json"), ("--help",)]
)
@pytest.mark.usefixtures("place")
def test_a_broken_pipe_is_quiet(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "lipcompile", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait() == 141
    process.stderr.close()


@pytest.mark.usefixtures("place")
def test_output_survives_a_terminal_without_unicode() -> None:
    command = [sys.executable, "-m", "lipcompile", "check", "model.lip"]
    environment = {"PYTHONIOENCODING": "ascii", "PATH": ""}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert r"\u2713" in result.stdout


def test_public_names_are_found_lazily() -> None:
    import lipcompile

    assert all(hasattr(lipcompile, name) for name in lipcompile.__all__)
    assert set(dir(lipcompile)) == set(lipcompile.__all__)
    with pytest.raises(AttributeError):
        _ = lipcompile.nothing


def test_check_does_little_work(tmp_path: Path) -> None:
    """A promise of the tool, and a budget for its imports: a second of CPU time is some two million calls."""
    model = Path(__file__).parents[2] / "examples" / "mlp.lip"
    program = (
        "import sys\ncalls = 0\n"
        "def count(_frame, event, _argument):\n    global calls\n    calls += event in ('call', 'c_call')\n"
        "sys.setprofile(count)\nfrom lipcompile.__main__ import run\n"
        f"assert run(['check', {str(model)!r}]) == 0\n"
        "sys.setprofile(None)\nprint(calls, file=sys.stderr)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert int(done.stderr) < 1_900_000
