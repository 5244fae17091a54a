"""The torch front end: modules by name and in memory, in their own names; what cannot be imported is told."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import lipcompile
from lipcompile import __main__, pipeline
from lipcompile.diagnostics import InputError, Severity
from lipcompile.frontends.onnx.file.session import parts
from lipcompile.frontends.options import ModelOptions
from lipcompile.frontends.repairs import Repairs
from lipcompile.frontends.torch.tracing import Example, traced
from lipcompile.frontends.torch.translation import digest, translated
from lipcompile.pipeline import from_module
from tests.nights import by_day

Capture = pytest.CaptureFixture[str]
NAMES = (f"user_module_{number}" for number in count())

PREAMBLE = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, bias=False)
        self.head = nn.Linear(width, 5)
    def forward(self, image):
        return self.head(F.relu(self.stem(image)).mean((2, 3)))
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writes a module of the user's into the current folder and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    written = []

    def write(code: str) -> str:
        name = next(NAMES)
        Path(f"{name}.py").write_text(PREAMBLE + code, encoding="utf-8")
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def checked(capsys: Capture, reference: str, *options: str, code: int = 0) -> dict[str, Any]:
    arguments = ["check", reference, "--format", "json", *(options or ("--input-shape", "3,8,8"))]
    assert __main__.run(arguments) == code
    out, err = capsys.readouterr()
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    return answer


def refused(capsys: Capture, reference: str, *options: str) -> dict[str, Any]:
    """The only diagnostic of a model that cannot be used: exit code 2."""
    arguments = ["check", reference, *(options or ("--input-shape", "3,8,8"))]
    assert __main__.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    with pytest.raises(InputError) as raised:
        lipcompile.check(reference, _options(options or ("--input-shape", "3,8,8")))
    (found,) = raised.value.diagnostics
    assert found.code in err
    return {"code": found.code, "message": found.message, "help": found.help, "location": found.location}


def _options(texts: tuple[str, ...]) -> Any:
    from lipcompile.frontends.options import ModelOptions, parse_shape

    return ModelOptions(input_shape=dict(parse_shape(text) for text in texts if not text.startswith("--")))


# Where a module comes from


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("", "Net"),  # a class
        ("def make():\n    return Net(4)", "make"),  # a function
        ("NET = Net()", "NET"),  # an object
        ("make = lambda: Net()", "make"),
        ("class Zoo:\n    @staticmethod\n    def small():\n        return Net(2)", "Zoo.small"),
        ("ZOO = nn.ModuleDict({'a': Net()})", "ZOO.a"),
        ("from functools import partial\nmake = partial(Net, width=3)", "make"),
    ],
)
def test_everything_that_gives_a_module(user: Any, capsys: Capture, code: str, name: str) -> None:
    found = checked(capsys, f"{user(code)}:{name}")
    assert found["model"]["format"] == "torch"
    assert found["model"]["name"] == name.rpartition(".")[2]
    names = [one["name"] for one in found["parameters"]]
    assert names == ["stem.weight", "head.weight", "head.bias"]


def test_modules_inside_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    Path("pack_of_tests/inner").mkdir(parents=True)
    Path("pack_of_tests/inner/nets.py").write_text(PREAMBLE)
    assert checked(capsys, "pack_of_tests.inner.nets:Net")["ok"]


@pytest.mark.parametrize(
    ("code", "name", "expected", "message", "line"),
    [
        ("", "Nett", "LIP020", "has no attribute `Nett`", None),
        ("def make():\n    return Net().stem.bogus", "make", "LIP021", "AttributeError", 14),
        ("def make():\n    return missing_name", "make", "LIP021", "NameError: name 'missing_name'", 14),
        ("raise SystemExit(3)", "Net", "LIP021", "SystemExit: 3", 13),
        ("import no_such_package_anywhere", "Net", "LIP021", "No module named 'no_such_package_anywhere'", 13),
        ("def broken(:", "Net", "LIP021", "SyntaxError", 13),
        ("def make(width, depth, other=3):\n    return Net(width)", "make", "LIP022", "width, depth", None),
        ("def make():\n    return {'model': Net()}", "make", "LIP022", "of type dict", None),
        ("NUMBER = 3", "NUMBER", "LIP022", "of type int", None),
        ("import torch.optim as o", "o", "LIP022", "of type module", None),
    ],
)
def test_factories_that_fail(
    user: Any, capsys: Capture, code: str, name: str, expected: str, message: str, line: int | None
) -> None:
    home = user(code)
    found = refused(capsys, f"{home}:{name}")
    assert found["code"] == expected
    assert message in found["message"]
    assert (found["location"] and found["location"].line) == line
    if line is not None:
        assert Path(found["location"].file).name == f"{home}.py"


def test_a_module_of_python_that_is_not_there(capsys: Capture) -> None:
    found = refused(capsys, "no_such_module_anywhere.inner:Net")
    assert found["code"] == "LIP020"
    assert "`no_such_module_anywhere`" in found["message"]


def test_the_name_of_a_file_is_no_module_of_python(user: Any, capsys: Capture) -> None:
    home = user("")
    found = refused(capsys, f"{home}.py:Net")
    assert (found["code"], found["help"]) == ("LIP020", f"write it without `.py`: `{home}`")


def test_a_near_name_is_suggested(user: Any, capsys: Capture) -> None:
    assert refused(capsys, f"{user('')}:Nett")["help"] == "did you mean `Net`?"


def test_what_is_no_reference_is_no_model(capsys: Capture) -> None:
    for text in ("model.pt", "a:b:c", "a b:c", "1a:b", ":b", "a:"):
        assert __main__.run(["check", text]) == 2
        assert "LIP001" in capsys.readouterr().err


def test_prints_of_the_user_do_not_mix_with_json(user: Any, capsys: Capture) -> None:
    name = user("print('hello')\ndef make():\n    print('made')\n    return Net()")
    assert __main__.run(["check", f"{name}:make", "--input-shape", "3,8,8", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["ok"]
    assert err == "hello\nmade\n"


@pytest.mark.slow
def test_a_process_that_reads_a_module_is_quiet(user: Any) -> None:
    """What torch says while it exports, from Python or below it, is not for users."""
    name = user("def make():\n    return Net().eval()")
    common = [f"{name}:make", "--input-shape", "3,8,8", "--input-norm", "1", "--loss", "cross_entropy"]
    command = [sys.executable, "-m", "lipcompile", "compile", *common, "-o", "out.py"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    told = [line for line in result.stderr.splitlines() if line and not line[0].isdigit()]
    expected = (" ", "warning[", "the import computes", "wrote")
    assert [line for line in told if not line.startswith(expected)] == []
    assert not result.stdout
    assert "class Make" in Path("out.py").read_text()


def test_a_module_without_a_norm_is_clipped_where_it_is_trained(user: Any, capsys: Capture) -> None:
    """By theorem it would need the norm of inputs; `check` shows the formulas of one."""
    command = f"compile {user('')}:Net --input-shape 3,8,8 --loss cross_entropy --no-verify-import -o out.py"
    assert __main__.run(command.split()) == 0
    assert "gradient of one example at most 1.0000000" in capsys.readouterr().err
    for theorem in ("--bounds theorem", "--constraint spectral:1", "--bias-bound 1"):
        assert __main__.run([*command.split(), *theorem.split()]) == 2
        assert "LIP014" in capsys.readouterr().err


def test_names_of_a_file_are_listed_where_none_is_alike(user: Any) -> None:
    name = user("def made():\n    return Net()\nNUMBER = 3")
    with pytest.raises(InputError) as raised:
        lipcompile.check(f"{name}:Transformer", _options(("--input-shape", "3,8,8")))
    assert raised.value.diagnostics[0].help == "it has Net, made"


# Shapes


def test_a_module_needs_a_shape(user: Any) -> None:
    with pytest.raises(InputError) as raised:
        lipcompile.check(f"{user('')}:Net")
    assert raised.value.diagnostics[0].code == "LIP023"


def test_a_shape_that_does_not_fit(user: Any, capsys: Capture) -> None:
    found = refused(capsys, f"{user('')}:Net", "--input-shape", "4,8,8")
    assert found["code"] == "LIP023"
    assert "[B, 4, 8, 8]" in found["message"]
    assert found["location"].line == 12


@pytest.mark.parametrize("shape", ["3,-1,8", "3,0", "", "3,,4", "a,b", "=3", "3;4"])
def test_what_is_no_shape(capsys: Capture, shape: str) -> None:
    assert __main__.run(["check", "m:f", "--input-shape", shape]) == 2
    assert "LIP005" in capsys.readouterr().err


def test_shapes_belong_to_inputs(capsys: Capture) -> None:
    for texts in (("3", "4"), ("x=3", "4"), ("x=3", "x=4")):
        options = [part for text in texts for part in ("--input-shape", text)]
        assert __main__.run(["check", "m:f", *options]) == 2
        assert "LIP005" in capsys.readouterr().err


def test_a_lip_file_has_its_shape(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "m.lip"
    path.write_text("model m {\n input x: tensor[4], norm <= 1\n dense(2)\n}")
    assert __main__.run(["check", str(path), "--input-shape", "4"]) == 2
    assert "LIP005" in capsys.readouterr().err


# In memory


class Norms(nn.Module):
    """Two norms whose gains and shifts are equal, and not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(6), nn.LayerNorm(6)
        self.head = nn.Linear(6, 4)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.second(torch.relu(self.first(x))))
        return y


def sizes(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def decimal(bound: Any) -> float:
    return float(bound)


def trained(derivation: Any) -> int:
    return int(derivation.analysis.graph.size(trained=True))


def test_equal_weights_are_not_tied() -> None:
    derivation = from_module(Norms(), (6,))
    assert derivation.ok
    assert trained(derivation) == sizes(Norms()) == 4 * 6 + 6 * 4 + 4
    assert not [found for found in derivation.diagnostics if found.code == "LIP309"]


class Tied(nn.Module):
    """Two layers with one weight; their biases are equal, and not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        nn.init.zeros_(self.first.bias)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu(self.first(x)))
        return y


def test_what_the_exporter_makes_is_no_weight() -> None:
    """A group norm is written as an instance norm with a gain of ones, a recurrent layer with states of zeros."""
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(16, 2))
    derivation = from_module(module, (2, 4, 4))
    assert derivation.ok, derivation.diagnostics
    assert trained(derivation) == sizes(module)


def test_tied_weights_are_one_parameter() -> None:
    derivation = from_module(Tied(), torch.zeros(2, 6))
    assert trained(derivation) == sizes(Tied()) == 6 * 6 + 6 + 6


def test_tied_weights_of_equal_entries_stay_tied() -> None:
    """In a file these would be taken for copies."""
    module = Tied()
    module.second.bias = module.first.bias
    assert trained(from_module(module, (6,))) == sizes(module) == 6 * 6 + 6


def test_a_convolution_without_a_bias_gets_none() -> None:
    derivation = from_module(
        nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Flatten(), nn.Linear(16, 2)), (3, 4, 4)
    )
    assert derivation.analysis is not None
    assert trained(derivation) == 4 * 3 * 9 + 16 * 2 + 2


class Positions(nn.Module):
    """A buffer, a frozen layer and a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.arange(6.0))
        self.frozen, self.trained = nn.Linear(6, 6), nn.Linear(6, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.offset, torch.Tensor)
        y: torch.Tensor = self.trained(torch.relu(self.frozen(x + self.offset)))
        return y


def test_what_the_module_does_not_train_is_frozen() -> None:
    module = Positions()
    derivation = from_module(module, (6,), input_norm=1.0, loss="cross_entropy")
    assert derivation.ok
    assert trained(derivation) == sizes(module) == 6 * 2 + 2


@pytest.mark.parametrize("constraint", [None, "spectral:0.5", "keep"])
def test_frozen_layers_are_kept_as_they_are(constraint: str | None) -> None:
    module = Positions()
    with torch.no_grad():
        module.frozen.weight.copy_(3 * torch.eye(6))
    derivation = from_module(module, (6,), constraint=constraint)
    assert derivation.analysis is not None
    frozen = [one for one in derivation.analysis.graph.parameters.values() if not one.trainable]
    bounds = {one.name: decimal(one.constraint.bound) for one in frozen if "weight" in one.name}
    assert list(bounds.values()) == [pytest.approx(3, rel=1e-5)]


class Mode(nn.Module):
    """Batch normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return y


@pytest.mark.parametrize(
    ("options", "told"),
    [((), True), (("--bounds", "auto"), False), (("--bounds", "theorem"), False), (("--input-norm", "1"), False)],
)
def test_a_check_says_which_bounds_a_training_would_have(
    options: tuple[str, ...], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """`check` takes theorems where nothing is said; `train` takes clips where no theorem gives a number."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("told_of_bounds.py").write_text("import torch\n\ndef make():\n    return torch.nn.Linear(4, 2)\n")
    arguments = ["check", "told_of_bounds:make", "--input-shape", "4", "--loss", "cross_entropy", *options]
    assert __main__.run(arguments) == 0
    assert ("compile, train and audit of this module have --bounds auto" in capsys.readouterr().err) == told


def test_batch_norm_in_training_mode_is_refused() -> None:
    """torch.onnx writes it as if it were in evaluation mode."""
    derivation = from_module(Mode(), (6,))
    (error,) = [found for found in derivation.diagnostics if found.severity == Severity.ERROR]
    assert error.code == "LIP101"
    assert (error.node, error.op) == ("body.1", "BatchNorm1d")
    assert 0 <= error.help.find("batch_norm=") < error.help.find(".eval()")  # which is for what is trained already
    assert error.location is not None
    assert Path(error.location.file).name == Path(__file__).name
    assert "self.body(x)" in Path(__file__).read_text().splitlines()[(error.location.line or 0) - 1]


def test_batch_norm_without_statistics_of_its_own_is_refused_always() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, track_running_stats=False)).eval()
    codes = {found.code for found in from_module(module, (6,)).diagnostics if found.severity == Severity.ERROR}
    assert "LIP101" in codes  # and that a mean is taken over the batch


def test_evaluation_mode_folds_it() -> None:
    assert from_module(Mode().eval(), (6,)).ok


def test_the_module_is_left_as_it_was() -> None:
    module = Mode()
    module.body[0].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    example = torch.ones(4, 6)
    from_module(module, example)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert [part.training for part in module.modules()] == [True, True, False, True, True]
    assert torch.equal(example, torch.ones(4, 6))


def test_names_are_the_modules_own() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad = nn.BatchNorm1d(6)
            self.lin = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + F.gelu(self.lin(self.bad(x)))

    derivation = from_module(nn.Sequential(nn.Sequential(Block(), Block())), (6,))
    errors = [found for found in derivation.diagnostics if found.severity == Severity.ERROR]
    assert [error.node for error in errors] == ["0.0.bad", "0.1.bad"]


def test_options_of_from_module() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    free = from_module(module, (4,))
    assert free.ok
    derivation = from_module(module, (4,), input_norm=0.1, loss="multiclass_hinge", freeze=["*0.weight"])
    assert derivation.analysis is not None
    (bound,) = derivation.analysis.parameters.values()
    # The hinge of 2 classes has constant 1/√2, the first layer of norm at most 1 hands on ‖x‖ <= 1/10.
    assert bound.value == pytest.approx(0.1 / 2**0.5)
    kept = from_module(module, (4,), constraint="keep")
    assert kept.analysis is not None
    first = next(iter(kept.analysis.graph.parameters.values()))
    largest = np.linalg.norm(next(module.parameters()).detach().double().numpy(), 2)
    assert decimal(first.constraint.bound) == pytest.approx(largest, rel=1e-5)


@pytest.mark.parametrize(
    "example",
    [
        torch.zeros(3, 6),
        (torch.zeros(1, 6),),
        [torch.zeros(5, 6)],
        {"input": torch.zeros(2, 6)},
        (6,),
        torch.Size([6]),
    ],
)
def test_examples(example: Any) -> None:
    derivation = from_module(nn.Sequential(nn.Linear(6, 2)), example)
    assert derivation.ok
    assert derivation.analysis is not None
    assert derivation.analysis.graph.input.shape == (6,)


@pytest.mark.parametrize("example", [torch.tensor(1.0), "3,4", None, (), (0, 3), object()])
def test_what_is_no_example(example: Any) -> None:
    with pytest.raises(InputError) as raised:
        from_module(nn.Linear(6, 2), example)
    assert raised.value.diagnostics[0].code == "LIP023"


def test_inputs_that_are_missing_are_named() -> None:
    class Two(nn.Linear):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(left + right)

    with pytest.raises(InputError, match="--input-shape left=3,32,32 --input-shape right=3,32,32"):
        from_module(Two(6, 2), (6,))


@pytest.mark.parametrize(
    "normalise",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_makes_a_weight_is_said_to_be_left_out(normalise: Any) -> None:
    module = nn.Sequential(normalise(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 2))
    derivation = from_module(module, (6,), input_norm=1, loss="cross_entropy", bounds="theorem")
    assert derivation.ok
    (found,) = [d for d in derivation.diagnostics if d.code == "LIP122"]
    assert found.message.startswith("`0.weight` is trained as it is")


@pytest.mark.parametrize("normalise", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_spectral_norm_in_training_mode_is_the_one_that_it_has_estimated(normalise: Any) -> None:
    """Each forward pass estimates it anew; the import compares with evaluation mode, and changes no estimate."""
    torch.manual_seed(0)  # of some weights the estimate has no more to learn
    module = nn.Sequential(normalise(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 2))
    before = {name: value.clone() for name, value in module.named_buffers()}
    assert before
    with pytest.warns(UserWarning, match="keeps the singular vectors that are stored now .LIP126."):
        private = lipcompile.private(module, (6,), bounds="clip")
    assert all(torch.equal(value, before[name]) for name, value in module.named_buffers())
    x = torch.randn(5, 6)
    torch.testing.assert_close(private.eval()(x), module.eval()(x))
    module.train()(x)
    assert not all(torch.equal(value, before[name]) for name, value in module.named_buffers())


def told_by_theorem(module: nn.Module) -> list[str]:
    """Return the messages of LIP122 by theorem; by a clip, parameters are trained as they are, without any."""
    by_clip = from_module(module, (6,), loss="cross_entropy", bounds="clip")
    assert by_clip.ok, by_clip.diagnostics
    assert "LIP122" not in {found.code for found in by_clip.diagnostics}
    derivation = from_module(module, (6,), input_norm=1, loss="cross_entropy", bounds="theorem")
    assert derivation.ok, derivation.diagnostics
    return [found.message for found in derivation.diagnostics if found.code == "LIP122"]


class Computing(nn.Module):
    """Computes a weight in its forward pass; its bias and its other uses of the weight are plain."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(6, 6)), nn.Linear(6, 2)
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.last(torch.tanh(x @ self.compute(self.weight))))


@pytest.mark.parametrize(
    ("compute", "told"),
    [
        (lambda w: w * torch.ones(6, 6).tril(), "Mul"),
        (lambda w: w.softmax(0), "Softmax"),
        (lambda w: w @ w.mT, "MatMul"),
        (lambda w: torch.cat([w[3:], w[:3]]).mT, None),
    ],
)
def test_a_weight_that_forward_computes_is_said_to_be_trained_itself(
    compute: Callable[[torch.Tensor], torch.Tensor], told: str | None
) -> None:
    """A mask is gone after the first step. Entries that are only moved are those of the parameter."""
    found = told_by_theorem(Computing(compute))
    assert found == (
        [f"the weight that {told} computes from `weight` is trained itself, without that computation"]
        if told
        else []
    )


class Copying(nn.Module):
    """Its layer has entries of a parameter in a way of one's own."""

    def __init__(self, size: tuple[int, ...], use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.entries, self.last, self.use = nn.Parameter(torch.randn(size)), nn.Linear(6, 2), use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.last(torch.tanh(self.use(x, self.entries))))


PLACES = torch.arange(6)


@pytest.mark.parametrize(
    ("size", "use", "told"),
    [
        ((1, 6), lambda x, p: F.linear(x, p.expand(6, 6)), "linear.weight"),
        ((6, 1), lambda x, p: F.linear(x, p.expand(6, 6)), "linear.weight"),
        ((), lambda x, p: x + p.expand(6), None),
        ((1,), lambda x, p: x * p.expand(6), None),
        ((2, 6), lambda x, p: F.linear(x, p.repeat(3, 1)), "linear.weight"),
        ((3, 6), lambda x, p: F.linear(x, torch.cat([p, p.flip(1)])), "linear.weight"),
        ((9, 6), lambda x, p: F.linear(x, p[[0, 1, 2, 3, 4, 0]]), "linear.weight"),
        ((6,), lambda x, p: F.linear(x, p[(PLACES[:, None] - PLACES) % 6]), "linear.weight"),
        (
            (2,),
            lambda x, p: torch.cat([x[:, :2, None].mT, p.expand(len(x), 2, 2)], 1).flatten(1),
            "entries.tokens",
        ),
        ((3,), lambda x, p: torch.cat([x[:, :3, None].mT, p.expand(len(x), 1, 3)], 1).flatten(1), None),
        ((6, 6), lambda x, p: F.linear(x, p.roll(1, 0)[:, PLACES.flip(0)]), None),
        ((), lambda x, p: x + p, None),
        ((2, 1), lambda x, p: (x.view(-1, 2, 3) * p).flatten(1), None),
    ],
)
def test_a_weight_with_one_entry_several_times_is_said_to_lose_the_tie(
    size: tuple[int, ...], use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], told: str | None
) -> None:
    """An entry that is copied for each example, moved, or used at many positions stays one number."""
    found = told_by_theorem(Copying(size, use))
    assert found == (
        [f"`{told}` has entries of `entries` several times: each copy is trained by itself"] if told else []
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_the_output_does_not_depend_on_is_said_to_be_left_out() -> None:
    """Tied weights are read under one of their names; frozen ones are not trained anyway."""
    module = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 6), nn.Linear(6, 6))
    module[2].weight = module[1].weight
    module.forgotten, module.kept = nn.Linear(3, 2), nn.Parameter(torch.ones(2), requires_grad=False)
    module.forward = lambda x: module[2](module[1](module[0](x)))  # type: ignore[method-assign]
    derivation = from_module(module, (6,), loss="cross_entropy", bounds="clip")
    assert derivation.ok
    (found,) = [d for d in derivation.diagnostics if d.code == "LIP123"]
    assert found.message == "the output does not depend on `forgotten.weight`, `forgotten.bias`: left out"


class Scaled(nn.Module):
    """A temperature, and a slope of one number, which is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.slope, self.temperature = nn.Linear(4, 3), nn.PReLU(), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.slope(self.layer(x)) * self.temperature
        return scaled


def test_a_number_that_scales_is_said_to_be_a_constant() -> None:
    assert not from_module(Scaled(), (4,), loss="cross_entropy", bounds="clip").diagnostics  # there it is trained
    derivation = from_module(Scaled(), (4,), loss="cross_entropy", bounds="theorem", input_norm=1)
    assert derivation.ok
    (found,) = [d for d in derivation.diagnostics if d.code == "LIP123"]
    assert found.message.startswith("`temperature`: one number that scales or shifts is a constant")


def test_a_parametrisation_that_cannot_be_written_is_to_be_removed() -> None:
    """An orthogonal weight is a product of Householder matrices, which ONNX has no operator for."""
    layer = nn.utils.parametrizations.orthogonal(nn.Linear(4, 3))
    (refused,) = from_module(layer, (4,), bounds="theorem").diagnostics
    assert (refused.code, "remove_parametrizations; or use --bounds clip" in refused.help) == ("LIP100", True)
    alone = from_module(layer, (4,), bounds="clip")
    assert alone.ok
    assert "LIP129" in {one.code for one in alone.diagnostics}
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    assert from_module(layer, (4,), bounds="clip").ok


class Twice(nn.Module):
    """An argument and a parameter of one name."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.layer(x * scale * self.scale)  # type: ignore[no-any-return]


def test_an_argument_has_no_name_of_a_parameter() -> None:
    """They were one tensor of the file: the model lost its input, or the parameter, or the import broke down."""
    (refused,) = from_module(Twice(), (torch.ones(2, 4), torch.ones(2, 4)), bounds="theorem").diagnostics
    assert (refused.code, "`scale` is an argument" in refused.message) == ("LIP121", True)


def test_options_of_embeddings_are_said_to_be_ignored() -> None:
    def told(bounds: Any = "clip", row: float = 0.0, **options: Any) -> list[str]:
        words = nn.Embedding(20, 4, **options)
        words.weight.data[0] = row
        module = nn.Sequential(words, nn.Flatten(), nn.Linear(12, 2))
        found = from_module(module, torch.zeros(2, 3, dtype=torch.long), loss="cross_entropy", bounds=bounds)
        assert found.ok
        return [one.message for one in found.diagnostics if one.code == "LIP125"]

    assert told() == []
    ignored = ["`0`: padding_idx is ignored, all rows of the table are trained alike"]
    assert told(padding_idx=0) == []
    assert told(padding_idx=0, row=1.0) == told("theorem", padding_idx=0) == ignored
    assert told(scale_grad_by_freq=True) == [
        "`0`: scale_grad_by_freq is ignored, all rows of the table are trained alike"
    ]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_another_kind_of_numbers_is_said_to_become_float32(kind: torch.dtype) -> None:
    module = nn.Linear(6, 2).to(kind)
    (found,) = [d for d in from_module(module, (6,)).diagnostics if d.code == "LIP124"]
    assert f"{kind} is the kind of numbers of `weight`, `bias`".removeprefix("torch.") in found.message
    with pytest.warns(UserWarning, match="the emitted module computes in float32"):
        private = lipcompile.private(module, (6,), bounds="clip")
    assert {parameter.dtype for parameter in private.parameters()} == {torch.float32}


class Sized(nn.Module):
    """A linear layer, and what a function makes of its output and the input."""

    def __init__(self, then: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(6, 3), then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self.layer(x.reshape(x.shape[0], -1)), x)


@pytest.mark.parametrize(
    "then",
    [
        lambda y, x: y / x.shape[0],
        lambda y, x: y / len(x),
        lambda y, x: y + float(x.shape[0]),
        lambda y, x: y * torch.tensor(len(x)),
        lambda y, x: y * 2 if x.shape[0] > 2 else y,
        lambda y, x: y.relu() if len(x) == 5 else y,
    ],
)
def test_what_is_computed_from_the_size_of_the_batch_is_refused(then: Any) -> None:
    """`len` and `float` fix the size that is traced: 3 and 6 are sizes of the layer, so it is 5, then 7."""
    (found,) = (d for d in from_module(Sized(then), (6,)).diagnostics if d.severity == Severity.ERROR)
    assert found.code == "LIP108"
    assert "differ" in found.message


def test_shapes_may_have_the_size_of_the_batch() -> None:
    def then(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return y.view(len(x), 1, 3).expand(len(x), 2, 3).reshape(len(x), 6) * 7.0 + 5.0

    assert from_module(Sized(then), (6,)).ok


def test_a_module_that_is_traced_twice_is_fixed_once() -> None:
    def then(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return y.view(len(x), 1, 3).expand(len(x), 2, 3).reshape(len(x), 6)

    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), Sized(then)).train()
    repairs = Repairs()
    derivation = pipeline.of_module(
        module, (6,), ModelOptions(loss="cross_entropy", bounds="clip", repairs=repairs)
    )
    assert derivation.ok
    assert len(repairs.made) == 1


class Moved(nn.Module):
    """Channels from the first axis to the last and back, as around norms in ConvNeXt: only strides change."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (2 * x.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("shape", "pool"),
    by_day(
        {0, 2, 5},
        [
            ((2, 1, 1), nn.AdaptiveAvgPool2d(7)),  # as of a VGG on images of 32 by 32
            ((2, 4, 5), nn.AdaptiveAvgPool2d((3, 7))),
            ((2, 6), nn.AdaptiveAvgPool1d(4)),
            ((2, 3, 2, 4), nn.AdaptiveAvgPool3d((2, 3, 4))),
            ((2, 5, 5), nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.AdaptiveAvgPool2d(2))),
            ((4, 2, 3), nn.Sequential(Moved(), nn.AdaptiveAvgPool2d(1))),
            ((4, 2, 3), nn.Sequential(Moved(), nn.AdaptiveAvgPool2d((1, 3)))),
        ],
    ),
)
def test_adaptive_pools_of_windows_that_differ(shape: tuple[int, ...], pool: nn.Module) -> None:
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    width = pool(x).flatten(1).shape[1]
    module = nn.Sequential(pool, nn.Flatten(), nn.Linear(width, 3))
    private = lipcompile.private(module, shape, bounds="clip")
    torch.testing.assert_close(private(x), module(x))
    derivation = from_module(module, shape, loss="cross_entropy", bounds="theorem", input_norm=1)
    assert derivation.ok
    assert derivation.analysis is not None
    if shape == (2, 1, 1):  # 49 copies of the input are 7 times as long
        (repeated,) = (n for n in derivation.analysis.graph.nodes if n.op.name == "dense" and len(n.shape) == 2)
        (layer,) = (one for one in derivation.analysis.layers if one.name == repeated.name)
        assert layer.output_norm.value == pytest.approx(7, rel=1e-5)


def test_random_depth_of_a_whole_batch_is_refused() -> None:
    class Deep(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = torch.empty(1, dtype=x.dtype).bernoulli_(0.9)
            return x + super().forward(x) * kept

    (found,) = (d for d in from_module(Deep(6, 6), (6,)).diagnostics if d.severity == Severity.ERROR)
    assert found.code == "LIP110"
    assert "random numbers other than those of dropout" in found.message
    assert "for each example by itself" in found.help


@pytest.mark.parametrize("draw", [nn.Dropout(0.5), torch.bernoulli], ids=["dropout", "bernoulli"])
def test_what_is_drawn_for_all_examples_is_not_drawn_once_and_for_all(
    draw: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    class Masked(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * draw(torch.full((1, 6), 0.5)))

    (found,) = (d for d in from_module(Masked(6, 6), (6,)).diagnostics if d.severity == Severity.ERROR)
    assert found.code in ("LIP100", "LIP110")
    assert found.op in ("Dropout", "Bernoulli")


def test_what_is_no_module() -> None:
    with pytest.raises(InputError) as raised:
        from_module(lambda x: x, (6,))  # type: ignore[arg-type]
    assert raised.value.diagnostics[0].code == "LIP022"


def test_tokens_are_recognised() -> None:
    module = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2))
    _, (taken,) = traced(module, [Example("", (3,))])
    assert taken.kind == torch.int64
    derivation = from_module(module, (3,), loss="cross_entropy")
    assert derivation.ok, derivation.diagnostics
    assert derivation.analysis is not None
    assert derivation.analysis.graph.input.tokens


# What has no graph


class Branch(nn.Module):
    """Decides by its data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class Foreign(nn.Module):
    """Leaves torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.tanh(x.detach().numpy()))


class ForeignAt(nn.Module):
    """Leaves torch, and fails on lengths of 0, of which no example is."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        kept = torch.from_numpy(np.tanh(x.detach().numpy()))
        return kept.gather(1, lengths[:, None] - 1)


class Exotic(nn.Module):
    """Has no ONNX operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = torch.linalg.svdvals(x.reshape(-1, 2, 2))
        return values


class Pair(nn.Module):
    """Two outputs."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, -x


@pytest.mark.parametrize(
    ("module", "code", "line"),
    [
        (Branch(), "LIP120", "if x.sum() > 0:"),
        (Foreign(), "LIP121", "np.tanh"),
        (Exotic(), "LIP100", None),
        (Pair(), "LIP107", None),
    ],
)
def test_what_cannot_be_imported_is_rejected(module: nn.Module, code: str, line: str | None) -> None:
    derivation = from_module(module, (4,))
    assert not derivation.ok
    (error,) = [found for found in derivation.diagnostics if found.severity == Severity.ERROR]
    assert error.code == code
    if line is not None:
        assert error.location is not None
        assert line in Path(error.location.file).read_text().splitlines()[(error.location.line or 0) - 1]


def test_the_line_is_named_where_zeros_are_no_examples() -> None:
    derivation = from_module(ForeignAt(), (torch.randn(2, 4), torch.tensor([4, 1])))
    (error,) = [found for found in derivation.diagnostics if found.severity == Severity.ERROR]
    assert (error.code, "numpy" in error.message) == ("LIP121", True)


def test_a_loop_over_the_batch_is_read_from_one_example() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = torch.stack([self.layer(row) for row in x])
            return rows

    derivation = from_module(Loop(), (4,), loss="cross_entropy", bounds="clip")
    assert derivation.ok
    assert [found.code for found in derivation.diagnostics] == ["LIP130"]


def test_one_tensor_for_two_inputs_is_two_inputs() -> None:
    """torch.export takes one object given twice for one input."""

    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - y

    same = torch.zeros(2, 4)
    derivation = from_module(Both(), (same, same))
    assert derivation.analysis is not None
    assert derivation.analysis.graph.input.shape == (8,)


# Boundaries


def test_nothing_is_said(capsys: Capture) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        from_module(Mode().eval(), (6,))
        from_module(Branch(), (6,))
    assert told == []
    assert capsys.readouterr() == ("", "")
    assert logging.root.manager.disable == 0


def test_the_digest_is_of_what_is_computed() -> None:
    torch.manual_seed(0)
    module = nn.Linear(4, 2)
    digests = [digest(translated(traced(module, [Example("", (4,))])[0])) for _ in range(2)]
    with torch.no_grad():
        module.bias[0] += 1
    digests.append(digest(translated(traced(module, [Example("", (4,))])[0])))
    assert digests[0] == digests[1] != digests[2]


def test_parts_of_several_inputs() -> None:
    x = np.arange(20.0).reshape(2, 10)
    first, second = parts(x, [(2, 2), (6,)])
    assert first.tolist() == [[[0, 1], [2, 3]], [[10, 11], [12, 13]]]
    assert second.tolist() == [[4, 5, 6, 7, 8, 9], [14, 15, 16, 17, 18, 19]]


def test_importing_the_compiler_loads_no_torch() -> None:
    program = "import lipcompile, lipcompile.pipeline, lipcompile.cli, sys\nlipcompile.from_module\n"
    program += "print([name for name in ('torch', 'onnx', 'onnxscript', 'onnxruntime') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


class Standardised(nn.Conv2d):
    """A convolution whose weight is normalised by a batch norm, filter by filter, as in NF-ResNets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(rows, None, None, training=True, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias)


@pytest.mark.parametrize("training", [False, True])
def test_a_weight_that_is_standardised_is_no_batch_normalisation_of_examples(training: bool) -> None:
    torch.manual_seed(0)  # the variance is 1 up to 1e-6 over that of the weights
    module = nn.Sequential(Standardised(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).train(training)
    found = from_module(module, (2, 3, 3), input_norm=1, loss="cross_entropy", constraint="keep")
    assert found.ok
    assert [d.code for d in found.diagnostics] == ["LIP122"]
    assert found.analysis is not None
    (weight,) = (p.initial for n, p in found.analysis.graph.parameters.items() if n == "n_0.weight")
    rows = np.asarray(weight).reshape(3, -1)
    np.testing.assert_allclose(rows.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(rows.var(axis=1), 1, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_a_standardised_weight_does_not_hide_a_batch_normalisation(training: bool) -> None:
    module = nn.Sequential(Standardised(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 3)).train(
        training
    )
    found = from_module(module, (2, 3, 3), input_norm=1, loss="cross_entropy")
    assert [d.code for d in found.diagnostics if d.severity == Severity.ERROR] == (["LIP101"] if training else [])
